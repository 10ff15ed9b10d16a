"""The summary of a run in one line: steps, loss, gamma, and E[c] against the radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhobust.gamma_rules import FixedGamma
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.training.record import rho_eff


def summary(run: Run) -> str:
    """Steps, loss, gamma, and E[c] over the last epoch, in one line."""
    records = run.metrics()
    if not records:
        return "no metrics"
    last, config = records[-1], run.config()
    maximizer, unit = config.make_method().maximizer, "rounds" if config.federation else "steps"
    priced = f", gamma {last['gamma']:.4g}" if maximizer.penalized else ""
    all_logged = config.log_every <= maximizer.turns
    steps = f"{last['step'] + 1} {unit}" if all_logged else f"{unit} logged up to {last['step'] + 1}"
    return f"{steps}, loss {last['loss']:.4f}{priced}, E[c] {_spent(records, config)}"


def _spent(records: Sequence[Mapping[str, Any]], config: Config) -> str:
    """E c, and what it says of rho."""
    spent = rho_eff(records)
    if config.radius is None:
        return f"{spent:.4g}"
    fixed = isinstance(config.make_gamma_rule(), FixedGamma)
    remark = "" if fixed else _remark(spent, config.radius, records[-1]["gamma"], config)
    return f"{spent:.4g} of rho {config.radius:g}{remark}"


def _remark(spent: float, radius: float, gamma: float, config: Config) -> str:
    """What keeps E c from meeting rho, where something does."""
    if spent < 0.95 * radius and (why := config.make_method().maximizer.why_short_of(radius)):
        return f" and no more: {why}, or take a smaller rho"
    if spent == 0:
        return ": nothing moves, for the loss has no slope. Look at the scale of the data, or lower the learning rate"
    if spent < 0.95 * radius and gamma <= 1.01 * config.gamma_min:
        # At the least price that is allowed, samples go as far as they gain by it.
        return " and no more: gamma is at its floor. Lower gamma_min, or take a smaller rho"
    return "" if abs(spent - radius) < 0.1 * radius else ": gamma has not settled. Train longer"
