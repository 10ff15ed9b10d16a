"""Error curves of a method over the seeds, from the result files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhobust.reproduction.experiments import FIGURES, Experiment

Content = Mapping[str, Any]
"""A figure's file, read."""

_LETTERS = {"radius": "rho", "epsilon": "epsilon", "gamma": "gamma"}
_ALIKE = ("erm",)  # in the table of tuned methods too: it has nothing to tune and is what all are measured against


@dataclass(frozen=True)
class Line:
    """One method with one setting."""

    method: str
    knob: str
    """The setting, as `rho 25`; empty where there is none."""
    tuned: bool
    runs: Sequence[Mapping[str, Any]]
    """One for each seed."""

    @property
    def label(self) -> str:
        """For a legend."""
        return ", ".join(part for part in (self.method, self.knob) if part)

    def places(self, panel: str) -> list[str]:
        """Epsilons or rounds that the panel was measured at, rising."""
        return sorted(self.runs[0]["errors"][panel], key=float)

    def errors(self, panel: str, place: str) -> list[float]:
        """One for each seed."""
        return [run["errors"][panel][place] for run in self.runs]

    def mean(self, panel: str, place: str) -> float:
        """Over the seeds."""
        return statistics.fmean(self.errors(panel, place))

    def mean_of(self, key: str) -> float:
        """Of another number of the runs, over the seeds."""
        return statistics.fmean(run[key] for run in self.runs)


def paper_lines(content: Content) -> list[Line]:
    """Every method with the paper's settings, as far as it is there."""
    figure = _figure(content)
    made = [_line(content, method, figure.paper[method], tuned=False) for method in figure.paper]
    return [line for line in made if line.runs]


def tuned_lines(content: Content) -> list[Line]:
    """Every method with the knob chosen for it, where one is, and whom they are measured against."""
    figure = _figure(content)
    made = [_line(content, method, figure.paper[method], tuned=False) for method in _ALIKE if method in figure.paper]
    for method, choice in content["choices"].items():
        made.append(_line(content, method, {choice["knob"]: choice["value"]}, tuned=True))
    return [line for line in made if line.runs]


def all_lines(content: Content) -> list[Line]:
    """Every method with the paper's settings, and with the knob chosen for it where that is another."""
    paper = paper_lines(content)
    known = [line.label for line in paper]
    return [*paper, *(line for line in tuned_lines(content) if line.label not in known)]


def find(lines: Sequence[Line], method: str) -> Line | None:
    """A method's line, if it is there."""
    return next((line for line in lines if line.method == method), None)


def _line(content: Content, method: str, knobs: Mapping[str, float], tuned: bool) -> Line:
    """The tuned line of a method whose best knob is the paper's is the paper's."""
    table = "tuned" if tuned and not content["choices"][method]["as_paper"] else "paper"
    start = f"{content['settings']['figure']}/{table}/{method}/"
    runs = [run for name, run in sorted(content["runs"].items()) if name.startswith(start)]
    knob = " ".join(f"{_LETTERS[name]} {value:g}" for name, value in knobs.items())
    return Line(method, knob, tuned, runs)


def _figure(content: Content) -> Experiment:
    return FIGURES[content["settings"]["figure"]]
