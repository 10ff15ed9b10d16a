"""The paper's figures, drawn from the result files: the mean over the seeds and the range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rhobust.charts import curves
from rhobust.reproduction.curves import Content, Line, all_lines, paper_lines, tuned_lines
from rhobust.reproduction.experiments import FIGURES, Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_figure(content: Content) -> Figure:
    """Figures 1 and 2: a row for the paper's settings, a row for tuned ones; figures 3 to 5: all in one row."""
    experiment = FIGURES[content["settings"]["figure"]]
    rows = _rows(content, experiment)
    panels = experiment.panels
    drawn, axes = curves.new_figure(len(panels), len(rows), 4.2 * len(panels) + 1.8, 4.2 * len(rows))
    for row, (title, lines) in zip(axes, rows.items(), strict=True):
        for axis, (panel, name) in zip(row, panels.items(), strict=True):
            _draw_panel(axis, panel, lines)
            axis.set_title(name)
            axis.set_xlabel("round" if experiment.federated else "epsilon (pixels in [-1, 1])")
        row[0].set_ylabel(title)
        row[-1].legend(*row[0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
    where = {"iid": ", ten workers", "one-class": ", ten workers, one class each", None: ""}[experiment.partition]
    quick = " (a quick look at a slice: no result)" if content["settings"]["quick"] else ""
    drawn.suptitle(f"{'Fashion-MNIST' if experiment.data == 'fashion-mnist' else 'MNIST'}{where}{quick}")
    return drawn


def _rows(content: Content, experiment: Experiment) -> Mapping[str, Sequence[Line]]:
    if experiment.federated:
        return {"error": all_lines(content)}
    return {"error, as in the paper": paper_lines(content), "error, each tuned": tuned_lines(content)}


def _draw_panel(axis: Any, panel: str, lines: Sequence[Line]) -> None:
    for line in lines:
        places = line.places(panel)
        x = [float(place) for place in places]
        style = curves.style(line.method)
        if line.tuned and any(other.method == line.method and not other.tuned for other in lines):
            style |= {"linestyle": ":"}  # the same method twice in a panel: the tuned one is dotted
        if len(x) > 20:
            style |= {"markevery": 4}
        axis.plot(x, [line.mean(panel, place) for place in places], label=line.label, **style)
        if len(line.runs) > 1:
            errors = [line.errors(panel, place) for place in places]
            axis.fill_between(
                x, [min(some) for some in errors], [max(some) for some in errors], color=style["color"], alpha=0.15
            )
    axis.set_ylim(0, 1)
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axis.grid(alpha=0.25)
