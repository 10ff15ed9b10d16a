"""rhobust: models that hold up everywhere inside a Wasserstein ball of radius rho around the data.

Three lines around a training loop (`RobustObjective`, `ProximalOptimizer`), one call (`fit`), or the command
`rhobust`. Costs, regularizers and maximizers live in `rhobust.costs`, `rhobust.regularizers` and `rhobust.ascent`.
"""

from rhobust import ascent, costs, regularizers
from rhobust.methods import Method, methods
from rhobust.objective import RobustObjective, Surrogate
from rhobust.optim import AdamGamma, FixedGamma, Multiplicative, ProjectedGradient, ProximalOptimizer
from rhobust.regularizers import L1

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
    "costs",
    "methods",
    "regularizers",
]
