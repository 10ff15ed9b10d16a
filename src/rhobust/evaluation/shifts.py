"""Errors of a classifier, or RMSEs of a regression, under distribution shift.

corruptions         noise, blur, contrast, brightness, rotation, translation, occlusion (`corruptions.CORRUPTIONS`)
label-proportion    the classes become as unequal as Zipf's law, p_k ~ rank^-s, in the order worst for the model
uci-digits          for `mnist`: other people's digits, collected, scanned and cut out in another way
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rhobust.ascent.inner_problem import project
from rhobust.attacks.attack import errs
from rhobust.box import Bounds, limits, pair
from rhobust.data import digits
from rhobust.data.samples import REGRESSION, TASKS, DataSet, Samples
from rhobust.errors import ConfigError, DataError, unknown
from rhobust.evaluation.corruptions import CORRUPTIONS, SEVERITIES, corrupt, translated
from rhobust.evaluation.evaluation import percent
from rhobust.losses import squared_error
from rhobust.support.display import Displayed, Table
from rhobust.support.probing import probing

_LABELS, _UCI = "label-proportion", "uci-digits"

SHIFTS: tuple[str, ...] = (*CORRUPTIONS, _LABELS, _UCI)
"""Every shift by name."""

EXPONENTS = (0.4, 0.8, 1.2, 1.6, 2.0)
"""s of Zipf's law p_k ~ rank^-s, for severities 1 to 5."""


@dataclass(frozen=True)
class ShiftedError:
    """Share of samples that the model gets wrong under one shift; for a regression the RMSE."""

    shift: str
    severity: int
    error: float


@dataclass(frozen=True)
class ShiftEvaluation(Displayed):
    """Clean error and the errors under each shift at each of its severities: fractions, or RMSEs of a regression."""

    samples: int
    clean: float
    shifted: list[ShiftedError]
    task: str = TASKS[0]

    def text(self, error: float) -> str:
        """An error in percent, or an RMSE."""
        return f"{error:.4g}" if self.task == REGRESSION else percent(error)

    @property
    def by_shift(self) -> dict[str, dict[int, float]]:
        """The errors by shift, then by severity."""
        found: dict[str, dict[int, float]] = {}
        for cell in self.shifted:
            found.setdefault(cell.shift, {})[cell.severity] = cell.error
        return found

    @property
    def means(self) -> dict[str, float]:
        """For each shift, the mean over its severities."""
        return {shift: fmean(errors.values()) for shift, errors in self.by_shift.items()}

    @property
    def mean(self) -> float:
        """The mean over shifts of the mean over severities: every shift counts the same."""
        return fmean(self.means.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values, the mean among them."""
        return {**asdict(self), "mean": self.mean}

    def _shown(self) -> list[Table | str]:
        return [shift_table([self])]


def shift_table(found: Sequence[ShiftEvaluation]) -> Table:
    """Shifts in rows, severities in columns, their mean, and that of a baseline, which comes second."""
    own = found[0]
    severities = sorted({cell.severity for cell in own.shifted})
    rows = []
    for shift, cells in own.by_shift.items():
        errors = [own.text(cells[severity]) if severity in cells else "" for severity in severities]
        rows.append([shift, *errors, *(own.text(one.means[shift]) for one in found)])
    if rows:
        rows.append(["mean over shifts", *[""] * len(severities), *(own.text(one.mean) for one in found)])
    measure = "RMSE" if own.task == REGRESSION else "error in percent"
    caption = f"{measure} on {own.samples} shifted samples, by severity; clean: {own.text(own.clean)}"
    return Table(caption, ["shift", *map(str, severities), *("mean", "baseline")[: len(found)]], rows)


def find_shifts(names: Sequence[str], data: DataSet) -> list[str]:
    """The shifts meant by `names`, each once, in the order of `SHIFTS`; `all` stands for those that the data allow.

    Samples that are not images (N, C, H, W) have no width and no angle: they allow noise and `label-proportion`.
    `uci-digits` speaks of models of `mnist` only. To ask by name for what the data do not allow is an error.
    """
    refused = {name: problem for name in SHIFTS if (problem := _problem(name, data))}
    problems = [unknown("shift", name, (*SHIFTS, "all")) for name in names if name not in (*SHIFTS, "all")]
    problems += [refused[name] for name in dict.fromkeys(names) if name in refused]
    if not names:
        problems.append(f"no shift is named; known: {', '.join(SHIFTS)}, all")
    if problems:
        raise ConfigError(problems)
    return [name for name in SHIFTS if name not in refused and ("all" in names or name in names)]


def _problem(shift: str, data: DataSet) -> str | None:
    """Why the data do not allow a shift, if they do not."""
    if shift == _UCI and data.name != "mnist":
        return f"shift '{_UCI}' is for models trained on mnist, and this one was trained on {data.name}"
    if shift == _LABELS and data.task == REGRESSION:
        return f"shift '{_LABELS}' changes how common the classes are, and a regression has none"
    shape = tuple(data.test.x.shape[1:])
    if shift in CORRUPTIONS and CORRUPTIONS[shift].images_only and len(shape) != 3:
        return f"shift '{shift}' needs images (channels, height, width); samples of {data.name} are {shape}"
    return None


def evaluate_shifts(
    model: nn.Module,
    data: DataSet,
    samples: Samples,
    *,
    shifts: Sequence[str] = ("all",),
    seed: int = 0,
    batch_size: int = 1024,
    done: Callable[[str], None] | None = None,
) -> ShiftEvaluation:
    """Clean error and the error under each shift at each severity, on `samples`, test samples of `data`.

    Random draws come from `seed`, shift and severity alone: every model meets the same corrupted samples, whatever else
    was asked for. Corruptions run on the CPU, the model where the samples are. `uci-digits` takes all 1,797 digits, and
    has severity 1 only.
    """
    wanted = find_shifts(shifts, data)
    limits = {"seed": (seed, 0), "batch_size": (batch_size, 1)}
    problems = [f"{name} must be >= {least}, not {value}" for name, (value, least) in limits.items() if value < least]
    if problems:
        raise ConfigError(problems)
    if not len(samples):
        raise DataError("there are no samples to measure an error on")

    def misses(samples: Samples, change: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
        parts = zip(torch.split(samples.x, batch_size), torch.split(samples.y, batch_size), strict=True)
        return torch.cat([harm(model, change(x), y) for x, y in parts]).cpu()

    def errors(shift: str) -> Iterator[float]:
        """At severity 1, 2, ..."""
        if shift == _LABELS:
            by_class = class_errors(clean, samples.y.cpu())
            yield from (worst_proportion_error(by_class, exponent) for exponent in EXPONENTS)
        elif shift == _UCI:
            others = uci_digits(pair(data.bounds))
            yield _share(misses(Samples(others.x.to(samples.x), others.y.to(samples.y))))
        else:
            for severity in SEVERITIES:
                yield summed(misses(samples, _corruption(shift, severity, data.bounds, seed)))

    harm, summed = (_squared, _root) if data.task == REGRESSION else (errs, _share)
    clean = misses(samples)
    cells: list[ShiftedError] = []
    for shift in wanted:
        for severity, error in enumerate(errors(shift), 1):
            cells.append(ShiftedError(shift, severity, error))
            if done:
                done(f"{shift} {severity}")
    return ShiftEvaluation(len(samples), summed(clean), cells, data.task)


def _squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The squared residual of each sample, (B,), in evaluation mode and without a trace."""
    with torch.no_grad(), probing(model):
        return squared_error(model(x), y)


def _root(squares: Tensor) -> float:
    return math.sqrt(float(squares.double().mean()))


def _share(which: Tensor) -> float:
    return float(which.double().mean())


def _corruption(shift: str, severity: int, bounds: Bounds, seed: int) -> Callable[[Tensor], Tensor]:
    """A corruption for one batch after another, with draws of its own. What is fixed in a box stays."""
    draws = np.random.default_rng([seed, severity, *shift.encode()])

    def change(x: Tensor) -> Tensor:
        z = x.double().cpu()
        ends, moves = limits(bounds, z)
        if ends is None:
            raise DataError(f"shift '{shift}' needs data with bounds: its severities are shares of their width")
        lower, upper = (np.asarray(end) for end in ends)
        return project(z, torch.from_numpy(corrupt(shift, severity, z.numpy(), (lower, upper), draws)), ends, moves).to(
            x
        )

    return change


def class_errors(wrong: Tensor, y: Tensor) -> NDArray[np.float64]:
    """The error on each class that has samples.

    >>> class_errors(torch.tensor([True, False, False]), torch.tensor([0, 0, 2])).tolist()
    [0.5, 0.0]
    """
    counts = torch.bincount(y)
    rates: NDArray[np.float64] = (torch.bincount(y, wrong.double()) / counts)[counts > 0].numpy()
    return rates


def worst_proportion_error(by_class: NDArray[np.float64], exponent: float) -> float:
    """sum_k p_k err_k, with p_k ~ rank^-s and the classes ranked by their errors, the worst class the most common.

    No other order of the classes has a larger error. At s = 0 all classes are equally common.

    >>> worst_proportion_error(np.array([0.0, 0.75]), 1.0)  # p = 1/3 and 2/3
    0.5
    """
    weights = np.arange(1.0, len(by_class) + 1) ** -exponent
    return float(np.sort(by_class)[::-1] @ weights / weights.sum())


def uci_digits(bounds: tuple[float, float]) -> Samples:
    """All digits of `data.digits()` laid out as MNIST's are: 20 x 20, center of mass at pixel (14, 14) of 28 x 28."""
    from scipy.ndimage import zoom

    raw = digits()
    x, y = torch.cat([raw.train.x, raw.test.x]), torch.cat([raw.train.y, raw.test.y])
    lower, upper = pair(raw.bounds)
    ink = (x.double().numpy() - lower) / (upper - lower)  # (N, 1, 8, 8) in [0, 1]
    # A pixel of the 8 x 8 is the mean ink of a cell, so it stands for the cell's center (grid_mode).
    glyphs = zoom(ink, (1, 1, 2.5, 2.5), order=1, mode="nearest", grid_mode=True)
    pages = np.pad(glyphs, ((0, 0), (0, 0), (4, 4), (4, 4)))
    mass, place = pages.sum((1, 2, 3)), np.arange(28) - 14
    down, right = pages.sum((1, 3)) @ place / mass, pages.sum((1, 2)) @ place / mass
    pages = translated(pages, -np.rint(down), -np.rint(right), 0.0)  # whole pixels: nothing is interpolated twice
    return Samples(torch.from_numpy(bounds[0] + pages * (bounds[1] - bounds[0])).float(), y)
