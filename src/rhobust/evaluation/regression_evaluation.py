"""The result of an evaluation of a regression: RMSE, MAE and R^2, clean and attacked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rhobust.attacks.attack import ATTACKS, only_weak
from rhobust.charts.axes import GRAY, drawable
from rhobust.charts.drawings import draw_errors
from rhobust.errors import DataError
from rhobust.evaluation.evaluation import WASSERSTEIN
from rhobust.evaluation.intervals import mean_interval
from rhobust.evaluation.trust import Flag
from rhobust.support.display import Displayed, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Residuals:
    """How far predictions are from y, in y's unit; of several numbers a sample, over all of them."""

    rmse: float
    """Root of the mean squared residual."""
    mae: float
    """Mean absolute residual."""
    r2: float | None
    """1 - squared residuals over squared distances of y from its mean; none where y is constant."""
    loss: float
    """Mean of the loss, which attacks raise."""
    rmse_interval: list[float]
    """95 % interval, by the delta method on the logarithm (`intervals.mean_interval`)."""
    mae_interval: list[float]

    @classmethod
    def of(cls, away: Tensor, y: Tensor, losses: Tensor) -> Residuals:
        """Of the residuals (N, k), the numbers themselves (N, k), and the losses (N,).

        >>> import torch
        >>> y = torch.tensor([[1.0], [2.0], [3.0]])
        >>> found = Residuals.of(torch.tensor([[0.0], [1.0], [-1.0]]), y, torch.tensor([0.0, 1.0, 1.0]))
        >>> round(found.rmse**2, 3), round(found.mae, 3), found.r2
        (0.667, 0.667, 0.0)
        """
        away, y = away.double(), y.double()
        if not bool(away.isfinite().all()):
            raise DataError(f"the model's output is not finite at sample {int((~away.isfinite()).any(1).nonzero()[0])}")
        squares, total = away.square().mean(1), float((y - y.mean(0)).square().sum())  # (N,)
        low, high = mean_interval(squares)
        return cls(
            rmse=math.sqrt(float(squares.mean())),
            mae=float(away.abs().mean()),
            r2=1 - float(away.square().sum()) / total if total > 0 else None,
            loss=float(losses.double().mean()),
            rmse_interval=[math.sqrt(low), math.sqrt(high)],
            mae_interval=[*mean_interval(away.abs().mean(1))],
        )

    def cells(self) -> list[str]:
        """RMSE and MAE with their intervals, and R^2."""
        return [shown(self.rmse), between(self.rmse_interval), shown(self.mae), between(self.mae_interval), self.share]

    @property
    def share(self) -> str:
        """R^2 as text."""
        return "" if self.r2 is None else f"{self.r2:.3f}"


def shown(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


def between(ends: list[float]) -> str:
    """An interval, of positive numbers."""
    return "-".join(f"{end:.3g}" for end in ends)


_COLUMNS = ("RMSE", "95 % interval", "MAE", "95 % interval", "R^2")


@dataclass(frozen=True)
class AttackedResiduals:
    """Residuals under one attack."""

    attack: str
    """A name of `ATTACKS`; `worst` or `worst-l2`, of several: the largest loss of each sample under any in that norm,
    at this epsilon or below it; or `wasserstein`."""
    epsilon: float
    """Radius of the ball; for `wasserstein`, the budget on E ||zeta - x||^2."""
    residuals: Residuals
    discarded: int = 0
    """Results that did not pass verification and were not counted."""
    mean_cost: float | None = None
    """For `wasserstein`: what was spent."""

    @property
    def error(self) -> float:
        """Its RMSE."""
        return self.residuals.rmse


@dataclass(frozen=True)
class RegressionEvaluation(Displayed):
    """Clean residuals and a grid of attacked ones; `clean` and `error` are RMSEs."""

    samples: int
    residuals: Residuals
    """Without an attack."""
    attacked: list[AttackedResiduals]
    flags: list[Flag] = field(default_factory=list)
    """Reasons not to trust the numbers; see `regression`."""
    checked: list[str] = field(default_factory=list)
    """Which checks were made."""
    forwarded: int = field(default=0, compare=False)
    """Samples that the model was shown: a measure of work that does not depend on the machine."""
    examples: dict[str, dict[float, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    """The attacked inputs by attack, then by epsilon, where they were asked for."""

    @property
    def clean(self) -> float:
        """RMSE without an attack."""
        return self.residuals.rmse

    @property
    def grid(self) -> dict[str, dict[float, AttackedResiduals]]:
        """The results by attack, then by epsilon."""
        found: dict[str, dict[float, AttackedResiduals]] = {}
        for cell in self.attacked:
            found.setdefault(cell.attack, {})[cell.epsilon] = cell
        return found

    @property
    def in_balls(self) -> dict[str, dict[float, AttackedResiduals]]:
        """Of the grid, the attacks in a ball."""
        return {attack: cells for attack, cells in self.grid.items() if attack != WASSERSTEIN}

    def error(self, name: str, epsilon: float) -> float:
        """The RMSE of one cell of the grid."""
        return self.grid[name][epsilon].error

    def interval(self, name: str, epsilon: float) -> tuple[float, float]:
        """The 95 % interval of that RMSE."""
        low, high = self.grid[name][epsilon].residuals.rmse_interval
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Plain values; the infinite end of an interval is null."""
        plain = asdict(replace(self, examples={}))
        del plain["examples"]
        for residuals in (plain["residuals"], *(cell["residuals"] for cell in plain["attacked"])):
            for name in ("rmse_interval", "mae_interval"):
                residuals[name] = [end if math.isfinite(end) else None for end in residuals[name]]
        return plain

    def plot(self, axes: Axes | None = None) -> Axes:
        """RMSE against epsilon, a line with its 95 % band for each attack in a ball; dotted: the clean RMSE.

        Draws on `axes`, or on those of a new figure, and returns them. Where no attack was in a ball, the Wasserstein
        attack is drawn against its budget.
        """
        balls = self.in_balls
        alone = WASSERSTEIN in self.grid and not balls
        axes = drawable(axes, "budget (average squared distance)" if alone else "perturbation size epsilon", "RMSE")
        axes.axhline(self.clean, color=GRAY, linestyle=":", label="clean")
        curves = {name: [_point(cell) for cell in cells.values()] for name, cells in (balls or self.grid).items()}
        draw_errors(axes, curves, top=None)
        axes.legend()
        return axes

    def _shown(self) -> list[Table | str]:
        """The clean residuals, a table for each attack, and whether they can be trusted."""
        own = self.residuals
        clean = f"clean RMSE {shown(own.rmse)} (95 % interval {between(own.rmse_interval)}), MAE {shown(own.mae)}"
        clean += f", R^2 {own.share}" if own.share else ""
        tables = [_table(name, cells) for name, cells in self.grid.items()]
        return [f"{clean} on {self.samples} samples, in the unit of y", *tables, *self._judgement()]

    def _judgement(self) -> list[str]:
        """Which checks failed, or that none did."""
        said = [str(flag) for flag in self.flags]
        alone = [attack for attack in self.in_balls if attack in ATTACKS]
        if alone and only_weak(alone):
            said.append(f"only weak attacks were run ({', '.join(alone)}): stronger ones, such as apgd, find more")
        elif self.checked and not self.flags:
            said.append(f"passed checks: {', '.join(self.checked)}")
        if "learned" not in self.checked:
            said.append(f"not checked: {self.samples} samples do not tell whether the model has learned anything")
        return said


def _point(cell: AttackedResiduals) -> tuple[float, float, float, float]:
    low, high = cell.residuals.rmse_interval
    return cell.epsilon, cell.error, low, high


def _table(name: str, cells: Mapping[float, AttackedResiduals]) -> Table:
    """Epsilons or budgets in rows."""
    budget = name == WASSERSTEIN
    rows = []
    for size, cell in cells.items():
        spent = [shown(math.nan if cell.mean_cost is None else cell.mean_cost)] if budget else []
        rows.append([f"{size:g}", *spent, *cell.residuals.cells()])
    heads = ["budget", "average transport cost"] if budget else ["epsilon"]
    return Table(f"{name} attack" if budget else name, [*heads, *_COLUMNS], rows)
