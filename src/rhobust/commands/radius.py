"""The command `rhobust radius`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table
from torch import Tensor

from rhobust.box import Bounds, Box
from rhobust.commands.output import Quiet, check_output, check_seed
from rhobust.data.catalog import DATA, data_problem, load_data
from rhobust.data.npz import unlabeled
from rhobust.data.samples import DataSet
from rhobust.data.table_settings import is_table
from rhobust.drift.transport import METHODS, NORMS, Covering, Transport, covering_radius, transport_cost
from rhobust.errors import ConfigError
from rhobust.runs.config import Config
from rhobust.support.console import ERR, OUT, say, show
from rhobust.support.environment import environment
from rhobust.support.files import write_json

_PARTS = ("train", "test")
_WHERE = "train or test (of --data), NAME, NAME:test, a path: .npz (its x), images."

Load = Callable[[str], DataSet]


def radius(
    from_: Annotated[str | None, typer.Option("--from", metavar="SAMPLE", help=_WHERE)] = None,
    to: Annotated[str | None, typer.Option(metavar="SAMPLE", help="What it drifted to, named the same way.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Size of a ball around each sample, instead of --to.")] = None,
    norm: Annotated[str | None, typer.Option(help=f"Of the ball: {' or '.join(NORMS)}.", show_default="inf")] = None,
    data: Annotated[str | None, typer.Option(help=f"{', '.join(DATA)}, or a path: .npz, images.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where to look for mnist/ and fashion-mnist/ first.")] = None,
    cost: Annotated[str, typer.Option(help="The transport cost: l2, lp:P or linf; all squared.")] = "l2",
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}.", show_default="auto")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the subsamples and directions.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    quiet: Quiet = False,
) -> None:
    """Which radius? The one of the drift from one sample to another, or the one that covers a ball."""
    _check(from_, to, epsilon, norm, data, method)
    check_output("--json", json)
    check_seed(seed)
    priced = Config(cost=cost).make_cost()
    load: Load = cache(lambda name: load_data(name, data_dir))
    settings: dict[str, Any] = {"data": data, "cost": cost}
    found: Transport | Covering
    with ERR.status("measuring", spinner="dots"):
        if epsilon is not None:
            norm, known = norm or "inf", load(str(data))
            settings |= {"epsilon": epsilon, "norm": norm, "bounds": known.bounds}
            found = covering_radius(epsilon, norm, priced, known.train.x, known.bounds)
        else:
            source, target = _sample(str(from_), data, load), _sample(str(to), data, load)
            settings |= {"from": from_, "to": to, "method": method or "auto", "seed": seed}
            found = transport_cost(source, target, priced, method or "auto", seed)
    if not quiet and isinstance(found, Covering):
        _show_covering(found, settings)
    elif not quiet and isinstance(found, Transport):
        ranges = [f"{float(x.min()):g} to {float(x.max()):g}" for x in (source, target)]
        say(OUT, f"transport cost {cost}, squared; {from_} runs from {ranges[0]}, {to} from {ranges[1]}")
        _show_transport(found)
    if json is not None:
        write_json(json, {"settings": settings, "environment": environment("cpu"), **asdict(found)})


def _check(
    from_: str | None, to: str | None, epsilon: float | None, norm: str | None, data: str | None, method: str | None
) -> None:
    """One request, whole, and nothing beside it that would be ignored."""
    wrong = []
    drift = from_ is not None or to is not None
    if drift == (epsilon is not None):
        wrong.append("say which: --from SAMPLE --to SAMPLE for a drift, or --epsilon SIZE --data NAME for a ball")
    elif drift:
        wrong += [f"{option} is missing" for option, value in (("--from", from_), ("--to", to)) if value is None]
        wrong += ["--norm belongs to --epsilon"] if norm is not None else []
        wrong += [problem for word in (from_, to) if word is not None and (problem := _sample_problem(word, data))]
    else:
        wrong += ["--method belongs to --from and --to"] if method is not None else []
        wrong += ["--epsilon needs --data: the features are counted, and the room within the bounds"] * (data is None)
    if data is not None and (problem := data_problem(data)):
        wrong.append(problem)
    tables = [word for word in (data, from_, to) if word is not None and is_table(word.rpartition(":")[0] or word)]
    wrong += [
        f"'{word}' is a table, and tables are not measured here: give arrays of features (.npz)" for word in tables
    ]
    if wrong:
        raise ConfigError(dict.fromkeys(wrong))


def _parted(word: str, data: str | None) -> tuple[str, str] | None:
    """A data set and one of its parts, if that is what the word says; None for a path, which is taken whole."""
    if word in _PARTS:
        return data or "", word
    name, _, part = word.rpartition(":")
    if name and part in _PARTS:
        return name, part
    return (word, "train") if word in DATA else None


def _sample_problem(word: str, data: str | None) -> str | None:
    if word in _PARTS:
        return f"'{word}' is a part of what? Give --data NAME as well" if data is None else None
    parted = _parted(word, data)
    return data_problem(parted[0] if parted else word)


def _sample(word: str, data: str | None, load: Load) -> Tensor:
    """The samples that a word of the command stands for."""
    if parted := _parted(word, data):
        known = load(parted[0])
        return known.train.x if parted[1] == "train" else known.test.x
    if Path(word).is_dir():
        known = load(word)
        return torch.cat([known.train.x, known.test.x])
    return unlabeled(Path(word))


def _show_transport(found: Transport) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in ("samples", "E c", "standard error"):
        table.add_column(column, justify="right", no_wrap=True)
    if found.error is None:
        sizes = f"{found.samples[0]} to {found.samples[1]}"
        table.add_row(f"the whole samples, {found.kind}", sizes, f"{found.value:.4g}", "")
    held = found.comparison
    if held is not None:
        for name, estimate in (("drift", held.drifted), ("no drift", held.baseline), ("excess", held.excess)):
            sizes = "" if name == "excess" else f"{held.size} to {held.size}"
            label = name if name == "excess" else f"{name}, {held.repeats} subsamples"
            table.add_row(label, sizes, f"{estimate.value:.4g}", f"{estimate.error:.2g}")
    show(table)
    say(OUT, _verdict(found))
    if found.error is None and found.samples[0] == found.samples[1]:
        say(
            OUT,
            f"but if these are the same samples before and after, the drift is {found.value:.4g}, without any chance",
        )
    say(OUT, "labels are not moved and not compared: the theory never moves them")


def _verdict(found: Transport) -> str:
    """What may be read from the numbers."""
    if found.comparison is None:
        return "too few samples to tell a drift from chance: the cost above holds both"
    compared = found.comparison
    if compared.drift > 0:
        return (
            f"rho to start from: {compared.excess.value:.4g}, the excess: right for a shift, too small for a drift "
            "that also draws samples together, too large for one that scatters them"
        )
    if compared.drift < 0:
        return (
            "the sample is nearer than one without drift would be: it is less spread out, and the excess says nothing; "
            "transport the same samples before and after the drift, or use --method sliced"
        )
    return "the excess is within what chance makes of so few subsamples (95 %): no drift can be told from these samples"


def _show_covering(found: Covering, settings: dict[str, Any]) -> None:
    say(
        OUT,
        f"rho that covers every move of at most {settings['epsilon']:g} in l_{settings['norm']}, for the "
        f"{found.features} features of {settings['data']}, cost {settings['cost']}, squared",
    )
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("rho", justify="right")
    table.add_row("anywhere", f"{found.free:.4g}")
    table.add_row(f"within {_described(settings['bounds'])}", f"{found.boxed:.4g}")
    show(table)
    say(OUT, "a ball bounds every sample, rho only their average: such a rho allows far more than the ball")


def _described(bounds: Bounds) -> str:
    if bounds is None or isinstance(bounds, Box):
        return "the bounds of each feature"
    return f"[{bounds[0]:g}, {bounds[1]:g}]"
