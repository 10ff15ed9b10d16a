"""The numbers as Markdown tables, from the result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhobust.reproduction.curves import Content, Line, all_lines, paper_lines, tuned_lines
from rhobust.reproduction.experiments import FIGURES, PANELS, ROUND_PANELS

_SHOWN_EPSILONS = ("0.1", "0.2", "0.3", "0.4")
_SHOWN_ROUNDS = ("25", "50", "100", "300", "500", "1000")
_SHORT = {"fgsm": "FGSM", "ifgsm": "IFGSM", "pgd-paper": "PGD", "pgd": "strict"}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def percent(errors: Sequence[float]) -> str:
    """Mean over the seeds, ± half the range over the seeds.

    >>> percent([0.1, 0.12])
    '11.0 ± 1.0'
    """
    mean = f"{100 * sum(errors) / len(errors):.1f}"
    return f"{mean} ± {50 * (max(errors) - min(errors)):.1f}" if len(errors) > 1 else mean


def tables(contents: Mapping[str, Content]) -> dict[str, str]:
    """Every table that the files have numbers for, by its name on the page."""
    made: dict[str, str] = {}
    for name, content in contents.items():
        if FIGURES[name].federated:
            made[name] = _rounds_table(content)
        else:
            for table, lines in (("paper", paper_lines(content)), ("tuned", tuned_lines(content))):
                for panel in PANELS:
                    made[f"{name}-{table}-{panel}"] = _panel_table(lines, panel)
        made[f"{name}-choices"] = _choices_table(content)
    return made


def _panel_table(lines: Sequence[Line], panel: str) -> str:
    """Error under one attack; E[c] says what training spent on moving a sample."""
    shown = [place for place in _SHOWN_EPSILONS if lines and place in lines[0].places(panel)]
    head = ["trained by", "setting", "E[c]", "clean", *(f"{_SHORT[panel]} {place}" for place in shown)]
    rows = []
    for line in lines:
        cells = [percent(line.errors("fgsm", "0")), *(percent(line.errors(panel, place)) for place in shown)]
        rows.append([line.method, line.knob, f"{line.mean_of('rho_eff'):.3g}", *cells])
    return markdown(head, rows)


def _rounds_table(content: Content) -> str:
    """Error after some rounds, a part for each panel."""
    lines = all_lines(content)
    places = lines[0].places("clean")
    shown = [place for place in places if place in _SHOWN_ROUNDS or place == places[-1]]
    rows = [
        [name, line.method, line.knob + " (tuned)" * line.tuned]
        + [percent(line.errors(panel, place)) for place in shown]
        + [f"{line.mean_of('rho_eff'):.3g}"]
        for panel, name in ROUND_PANELS.items()
        for line in lines
    ]
    return markdown(["panel", "trained by", "setting", *(f"round {place}" for place in shown), "E[c]"], rows)


def _choices_table(content: Content) -> str:
    """The mean validation error of every candidate, and which was taken."""
    rows = []
    for method, choice in content["choices"].items():
        tried = ", ".join(f"{value}: {100 * error:.1f}" for value, error in choice["errors"].items())
        edge = " (edge of the grid)" if choice["at_edge"] else ""
        rows.append([method, choice["knob"], tried, f"{choice['value']:g}{edge}"])
    return markdown(["trained by", "knob", "validation error", "taken"], rows)


def sessions_table(sessions: Sequence[Mapping[str, Any]]) -> str:
    """What the calls of the command took."""
    rows = [
        [
            ", ".join(session["figures"]),
            str(session["seeds"]),
            str(session["jobs"]),
            f"{session['seconds']:.0f}",
            f"{session['flops'] / 1e15:.3g}",
            f"{session['tflops_per_second']:.3g}",
            session["environment"]["device"],
        ]
        for session in sessions
    ]
    head = ["figures", "seeds", "trainings", "seconds", "useful PFLOP", "useful TFLOP/s", "device"]
    return markdown(head, rows)


def deployed_table(found: Mapping[str, Any]) -> str:
    """The same rounds in process and deployed."""
    rows = [
        [name, *(f"{100 * found[key]['errors'][kind]:.1f}" for kind in ROUND_PANELS), f"{found[key]['gamma']:.4f}"]
        for name, key in (("in process, batches fused", "in_process"), ("deployed", "deployed"))
    ]
    return markdown(["", *ROUND_PANELS.values(), "gamma"], rows)
