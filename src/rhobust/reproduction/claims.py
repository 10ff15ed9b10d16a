"""The paper's claims about its figures, checked against the result files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rhobust.reproduction.curves import Content, Line, find, paper_lines, tuned_lines
from rhobust.reproduction.experiments import FIGURES
from rhobust.reproduction.tables import markdown

_OTHERS = ("erm", "fgsm", "ifgsm", "wrm")
_ATTACKS = {"a": "fgsm", "b": "ifgsm", "c": "pgd-paper", "d": "pgd"}
_NAMES = {"fgsm": "FGSM", "ifgsm": "IFGSM", "pgd-paper": "PGD", "pgd": "the strict PGD (not in the paper)"}
_NOTABLE = 0.01  # a change or difference of error below this is none, on a thousand images
_REASONABLE = {"mnist": 0.05, "fashion-mnist": 0.2}  # clean error; the paper gives no number
_SETTLED = 0.1  # share of the rounds after which a trend is looked at: before, everybody learns


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds under one reading of the paper."""

    held: int
    """At so many places."""
    places: int
    detail: str = ""

    def __str__(self) -> str:
        word = {0: "**no**", self.places: "yes"}.get(self.held, "in part")
        count = f"{self.held} of {self.places}" if self.places > 1 else ""
        return ", ".join(part for part in (word, count, self.detail) if part)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and a verdict for each reading that has one."""

    panel: str
    words: str
    verdicts: Mapping[str, Verdict]


READINGS = {"paper": "paper's settings, our step", "tuned": "each tuned", "literal": "paper's settings, printed step"}


def claims(contents: Mapping[str, Content]) -> list[Claim]:
    """Every claim that the files have numbers for."""
    found: list[Claim] = []
    for name, content in contents.items():
        found += _rounds(name, content, contents) if FIGURES[name].federated else _curves(name, content)
    return [claim for claim in found if claim.verdicts]


def claims_table(contents: Mapping[str, Content]) -> str:
    """All of them."""
    rows = [
        [claim.panel, claim.words, *(str(claim.verdicts.get(reading, "")) for reading in READINGS)]
        for claim in claims(contents)
    ]
    return markdown(["panel", "claim", *READINGS.values()], rows)


def _curves(name: str, content: Content) -> list[Claim]:
    """Figures 1 and 2: whose error is below whose, at how many epsilons."""
    number, paper, tuned = name[-1], paper_lines(content), tuned_lines(content)
    found = []
    if name == "figure1":  # said of MNIST under FGSM only
        robust = {"paper": ("spgd", "spgda-loss"), "literal": ("spgd-literal", "spgda-literal")}
        verdicts = {
            reading: _all_below(paper, (*_OTHERS[1:], *ours), "erm", "fgsm") for reading, ours in robust.items()
        }
        verdicts["tuned"] = _all_below(tuned, (*_OTHERS[1:], *robust["paper"]), "erm", "fgsm")
        found.append(Claim("1a", "under FGSM every robust training has less error than ERM", _kept(verdicts)))
    for method, words in (("spgd", "SPGD"), ("spgda-loss", "SPGDA")):
        for letter, attack in _ATTACKS.items():
            verdicts = {
                "paper": _below_all(paper, method, attack),
                "tuned": _below_all(tuned, method, attack),
                "literal": _below_all(paper, f"{method}-literal", attack),
            }
            under = f"under {_NAMES[attack]} {words} has less error than ERM, FGSM, IFGSM and WRM"
            found.append(Claim(f"{number}{letter}", under, _kept(verdicts)))
    return sorted(found, key=lambda claim: claim.panel)


def _all_below(lines: Sequence[Line], methods: Sequence[str], bound: str, panel: str) -> Verdict | None:
    return _compared(lines, methods, [bound], panel)


def _below_all(lines: Sequence[Line], method: str, panel: str) -> Verdict | None:
    return _compared(lines, [method], _OTHERS, panel)


def _compared(lines: Sequence[Line], lower: Sequence[str], upper: Sequence[str], panel: str) -> Verdict | None:
    """At how many epsilons the highest of the ones is below the lowest of the others."""
    low, high = ([find(lines, method) for method in methods] for methods in (lower, upper))
    if None in (*low, *high):
        return None
    places = [place for place in lines[0].places(panel) if float(place) > 0]
    held = sum(
        max(line.mean(panel, place) for line in low if line) < min(line.mean(panel, place) for line in high if line)
        for place in places
    )
    return Verdict(held, len(places))


def _rounds(name: str, content: Content, contents: Mapping[str, Content]) -> list[Claim]:
    """Figures 3 to 5: what becomes of the error as rounds go by."""
    number, data = name[-1], FIGURES[name].data
    ours, fedavg = _readings(content), {"paper": find(paper_lines(content), "fedavg")}
    if name == "figure3":
        said = "one class a worker gives less error under {} than a fair share of all (figure 5)"
        other = _readings(contents["figure5"]) if "figure5" in contents else {}
        return [
            Claim(
                f"3{letter}",
                said.format(words),
                _kept({reading: _less(line, other.get(reading), panel) for reading, line in ours.items()}),
            )
            for letter, panel, words in (("b", "ifgsm", "IFGSM"), ("c", "pgd", "PGD"))
        ]

    def clean(line: Line) -> Verdict:
        last = line.mean("clean", line.places("clean")[-1])
        return Verdict(int(last < _REASONABLE[data]), 1, f"{100 * last:.1f} %")

    enough = f"without attack the error of {{}} is reasonable (below {100 * _REASONABLE[data]:.0f} %)"
    return [
        Claim(f"{number}a", enough.format("DRFL"), _each(ours, clean)),
        Claim(f"{number}a", enough.format("FedAvg"), _each(fedavg, clean)),
        Claim(f"{number}b", "under IFGSM DRFL keeps improving", _each(ours, _trend("ifgsm", falls=True))),
        Claim(f"{number}b", "under IFGSM FedAvg does not improve", _each(fedavg, _trend("ifgsm", falls=False))),
        Claim(f"{number}c", "under PGD FedAvg gets worse", _each(fedavg, _trend("pgd", rises=True))),
    ]


def _readings(content: Content) -> dict[str, Line | None]:
    paper = paper_lines(content)
    tuned = find([line for line in tuned_lines(content) if line.tuned], "drfl-loss")
    return {"paper": find(paper, "drfl-loss"), "tuned": tuned, "literal": find(paper, "drfl-literal")}


def _trend(panel: str, falls: bool | None = None, rises: bool | None = None) -> Callable[[Line], Verdict]:
    """The change of the error from when the first tenth of the rounds is over to the end."""

    def judged(line: Line) -> Verdict:
        places = line.places(panel)
        last = places[-1]
        first = next(place for place in places if float(place) >= _SETTLED * float(last))
        change = line.mean(panel, last) - line.mean(panel, first)
        held = (falls is None or falls == (change < -_NOTABLE)) and (rises is None or rises == (change > _NOTABLE))
        way = f"{100 * line.mean(panel, first):.1f} to {100 * line.mean(panel, last):.1f} %"
        return Verdict(int(held), 1, f"{way}, rounds {first} to {last}")

    return judged


def _less(line: Line | None, other: Line | None, panel: str) -> Verdict | None:
    if line is None or other is None:
        return None
    one, two = (some.mean(panel, some.places(panel)[-1]) for some in (line, other))
    return Verdict(int(one < two - _NOTABLE), 1, f"{100 * one:.1f} against {100 * two:.1f} %")


def _each(lines: Mapping[str, Line | None], judge: Callable[[Line], Verdict]) -> dict[str, Verdict]:
    return {reading: judge(line) for reading, line in lines.items() if line}


def _kept(verdicts: Mapping[str, Verdict | None]) -> dict[str, Verdict]:
    return {reading: verdict for reading, verdict in verdicts.items() if verdict}
