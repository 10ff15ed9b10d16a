"""The summary of a run in one line: steps, loss, gamma, and E[c] against the radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhobust.gamma_rules import FixedGamma
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.training.record import rho_eff
from rhobust.training.remarks import apart


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
    spent = _spent(records, config, run.radius_per_feature(config.radius))
    return f"{steps}, loss {last['loss']:.4f}{priced}, E[c] {spent}"


def _spent(records: Sequence[Mapping[str, Any]], config: Config, per_feature: float | None) -> str:
    """E c, and what it says of rho."""
    spent = rho_eff(records)
    if config.radius is None:
        return f"{spent:.4g}"
    fixed, maximizer = isinstance(config.make_gamma_rule(), FixedGamma), config.make_method().maximizer
    remark = "" if fixed else apart(spent, config.radius, records[-1]["gamma"], config.gamma_min, maximizer)
    typical = "" if per_feature is None else f" ({per_feature:.2g} deviations a feature)"
    return f"{spent:.4g} of rho {config.radius:g}{typical}{remark}"
