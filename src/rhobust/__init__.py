"""rhobust: models that hold up everywhere inside a Wasserstein ball of radius rho around the data.

Three lines around a training loop (`RobustObjective`, `ProximalOptimizer`), one call (`fit`), or the command
`rhobust`. Costs, regularizers and maximizers live in `rhobust.costs`, `rhobust.regularizers` and `rhobust.ascent`.
"""

from typing import TYPE_CHECKING

from rhobust import ascent, costs, errors, regularizers
from rhobust.gamma_rules import AdamGamma, FixedGamma, Multiplicative, ProjectedGradient
from rhobust.method import Method, methods
from rhobust.objective import RobustObjective, Surrogate
from rhobust.optim import ProximalOptimizer
from rhobust.regularizers import L1
from rhobust.support.version import __version__ as __version__

if TYPE_CHECKING:
    from rhobust.certificates.certify import certify
    from rhobust.runs.load import load
    from rhobust.training.fit import fit

__all__ = [
    "L1",
    "AdamGamma",
    "FixedGamma",
    "Method",
    "Multiplicative",
    "ProjectedGradient",
    "ProximalOptimizer",
    "RobustObjective",
    "Surrogate",
    "ascent",
    "certify",
    "costs",
    "errors",
    "fit",
    "load",
    "methods",
    "regularizers",
]


def __getattr__(name: str) -> object:
    """`certify`, `fit` and `load` on first use: the mathematics above needs torch alone."""
    if name == "certify":
        from rhobust.certificates.certify import certify

        return certify
    if name == "fit":
        from rhobust.training.fit import fit

        return fit
    if name == "load":
        from rhobust.runs.load import load

        return load
    raise AttributeError(f"module 'rhobust' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
