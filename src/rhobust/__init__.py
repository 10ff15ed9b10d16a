"""rhobust: models that stay accurate everywhere inside a Wasserstein ball of radius rho around the data.

Three lines around a training loop (`RobustObjective`, `ProximalOptimizer`), the verbs (`fit`, `evaluate`, `certify`,
`load`, `methods`), or the command `rhobust`. Costs, regularizers, maximizers and data live in `rhobust.costs`,
`rhobust.regularizers`, `rhobust.ascent` and `rhobust.data`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rhobust.support.version import __version__ as __version__

if TYPE_CHECKING:
    from rhobust import ascent, costs, data, errors, losses, memory, models, regularizers
    from rhobust.box import Box
    from rhobust.certificates.certify import certify
    from rhobust.evaluation.evaluate import evaluate
    from rhobust.gamma_rules import AdamGamma, FixedGamma, Multiplicative, ProjectedGradient
    from rhobust.inputs import Perturb
    from rhobust.method import Method, methods
    from rhobust.objective import RobustObjective
    from rhobust.optim import ProximalOptimizer
    from rhobust.regularizers import L1
    from rhobust.runs.load import load
    from rhobust.surrogate import Surrogate
    from rhobust.training.fit import fit
    from rhobust.training.observers import Observer

__all__ = [
    "L1",
    "AdamGamma",
    "Box",
    "FixedGamma",
    "Method",
    "Multiplicative",
    "Observer",
    "Perturb",
    "ProjectedGradient",
    "ProximalOptimizer",
    "RobustObjective",
    "Surrogate",
    "ascent",
    "certify",
    "costs",
    "data",
    "errors",
    "evaluate",
    "fit",
    "load",
    "losses",
    "memory",
    "methods",
    "models",
    "regularizers",
]

# Where a name is found when it is first used: `rhobust --help` needs no torch, and the mathematics nothing else.
_HOMES = {
    "box": ["Box"],
    "certificates.certify": ["certify"],
    "evaluation.evaluate": ["evaluate"],
    "gamma_rules": ["AdamGamma", "FixedGamma", "Multiplicative", "ProjectedGradient"],
    "method": ["Method", "methods"],
    "inputs": ["Perturb"],
    "objective": ["RobustObjective"],
    "optim": ["ProximalOptimizer"],
    "regularizers": ["L1"],
    "runs.load": ["load"],
    "surrogate": ["Surrogate"],
    "training.fit": ["fit"],
    "training.observers": ["Observer"],
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"rhobust.{home}"), name)
    if name in __all__:
        return import_module(f"rhobust.{name}")
    raise AttributeError(f"module 'rhobust' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
