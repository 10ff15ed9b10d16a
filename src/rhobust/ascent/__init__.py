"""Maximizers of zeta, which approach the inner sup over zeta of loss(zeta) - gamma c(z, zeta).

There is one loop, `maximize`; what differs arrives as a value:

    Identity         zeta = z                                            ERM
    Ball             signed or normalized steps inside a norm ball       FGSM, IFGSM, PGD
    PenalizedAscent  a fixed number of steps on psi                      WRM, the paper's SPGDA (one step)
    Oracle           steps on psi until an accuracy is reached           SPGD
    MarginAscent     steps that linearize the margin, not the loss       ours
    ErrorAscent      the same, after errors, not losses: our `spgda`     ours

Gradients are per sample (the batch is summed, never averaged), and zeta stays in the box of the data.
"""

from rhobust.ascent.inner_problem import Accuracy, Maximum, Point, Problem
from rhobust.ascent.margin import ErrorAscent, MarginAscent, error_length, margin_length
from rhobust.ascent.maximizer import Maximizer, Step, maximize
from rhobust.ascent.oracle import Oracle
from rhobust.ascent.steps import Ball, Identity, PenalizedAscent

__all__ = [
    "Accuracy",
    "Ball",
    "ErrorAscent",
    "Identity",
    "MarginAscent",
    "Maximizer",
    "Maximum",
    "Oracle",
    "PenalizedAscent",
    "Point",
    "Problem",
    "Step",
    "error_length",
    "margin_length",
    "maximize",
]
