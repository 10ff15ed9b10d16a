"""Transport costs c(z, zeta): the cost of moving a sample z to zeta.

Legend, one meaning each in every mathematical module (the paper's letters, spelled out):

    z, zeta   a sample and the point it is moved to        theta   the model's parameters
    gamma     the dual variable, price of transport        rho     the radius, E c <= rho
    psi       loss(zeta) + gamma (rho - c(z, zeta))        alpha   step size of theta
    eta       step size of zeta                            kappa   the price of flipping a label

Every cost here is a *squared* norm of the displacement, summed over all features of a sample (never the
mean), plus kappa where the label changes: c((x, y), (x', y')) = ||x - x'||^2 + kappa [y != y']. With the
default kappa = infinity labels never move.
"""

from rhobust.costs.cost import Cost, lp_norm, per_sample, rows
from rhobust.costs.norms import COSTS, SquaredL2, SquaredLinf, SquaredLp
from rhobust.costs.weighted import Weighted

__all__ = ["COSTS", "Cost", "SquaredL2", "SquaredLinf", "SquaredLp", "Weighted", "lp_norm", "per_sample", "rows"]
