"""The experiments of the paper's figures: data, methods and evaluations, in full and on a small slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PANELS = {
    "fgsm": "FGSM attack",
    "ifgsm": "IFGSM attack",
    "pgd-paper": "PGD attack, alpha = 1",
    "pgd": "PGD-40, restarts (strict)",
}
"""The panels of figures 1 and 2, by attack; the last is ours."""
ROUND_PANELS = {"clean": "no attack", "ifgsm": "IFGSM attack, 0.1", "pgd": "PGD attack, 0.1"}
"""The panels of figures 3 to 5, by what is measured after some rounds."""


@dataclass(frozen=True)
class Tuning:
    """The one knob that says how much robustness a method is asked for, and the values that are tried."""

    knob: str
    grid: tuple[float, ...]


@dataclass(frozen=True)
class Experiment:
    """A figure of the paper."""

    data: str
    partition: str | None
    """How ten workers share the data; none: there are no workers."""
    paper: Mapping[str, Mapping[str, float]]
    """Methods with the settings that the paper gives them."""
    tunings: Mapping[str, Tuning]
    """Methods whose knob is also chosen on a part of the training data that is held out."""

    @property
    def federated(self) -> bool:
        """Whether it is about rounds."""
        return self.partition is not None

    @property
    def panels(self) -> Mapping[str, str]:
        """What is drawn, by the name of the measurement."""
        return ROUND_PANELS if self.federated else PANELS


# Section VI: epsilon = 0.1 in training, gamma = 1 for WRM, rho = 25.
_CENTRAL: dict[str, dict[str, float]] = {
    "erm": {},
    "fgsm": {"epsilon": 0.1},
    "ifgsm": {"epsilon": 0.1},
    "wrm": {"gamma": 1.0},
    "spgd": {"radius": 25.0},
    "spgda-loss": {"radius": 25.0},
    "spgd-literal": {"radius": 25.0},
    "spgda-literal": {"radius": 25.0},
}
_FEDERATED: dict[str, dict[str, float]] = {
    "drfl-loss": {"radius": 25.0},
    "drfl-literal": {"radius": 25.0},
    "fedavg": {},
}
_BALL = Tuning("epsilon", (0.1, 0.2, 0.3, 0.4))
_ONE_STEP = Tuning("radius", (0.25, 0.5, 1.0, 2.0, 6.0, 25.0))
_TUNINGS = {
    "fgsm": _BALL,
    "ifgsm": _BALL,
    "wrm": Tuning("gamma", (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)),
    "spgd": Tuning("radius", (2.0, 6.0, 12.0, 25.0, 50.0)),
    "spgda-loss": _ONE_STEP,
    "spgda-margin": _ONE_STEP,
}
_ROUNDS = {"drfl-loss": Tuning("radius", (6.0, 12.0, 25.0, 50.0, 100.0))}

FIGURES: dict[str, Experiment] = {
    "figure1": Experiment("mnist", None, _CENTRAL, _TUNINGS),
    "figure2": Experiment("fashion-mnist", None, _CENTRAL, _TUNINGS),
    "figure3": Experiment("fashion-mnist", "one-class", _FEDERATED, _ROUNDS),
    "figure4": Experiment("mnist", "iid", _FEDERATED, _ROUNDS),
    "figure5": Experiment("fashion-mnist", "iid", _FEDERATED, _ROUNDS),
}
"""The paper's figures by name."""


@dataclass(frozen=True)
class Scale:
    """How much of it: everything that a quick look makes smaller."""

    epochs: int = 30
    rounds: int = 1000
    evaluate_every: int = 25
    """Rounds between two looks at the errors."""
    samples: int = 10_000
    """Test images that the errors are measured on."""
    epsilons: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
    strict_epsilons: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    strict_samples: int = 2_000
    """Test images for the strict column, which costs forty gradients and five restarts a cell."""
    restarts: int = 5
    tuning_epochs: int = 3
    tuning_rounds: int = 100
    held_out: int = 2_000
    """Training images that a candidate is judged on and not trained on."""
    candidates: int | None = None
    """How many values of each grid are tried; none: all."""
    slice: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make every training smaller."""
    quick: bool = False

    def grid(self, tuning: Tuning) -> tuple[float, ...]:
        """The values of a knob that are tried."""
        return tuning.grid[: self.candidates]


FULL = Scale()
QUICK = Scale(
    epochs=4,
    rounds=6,
    evaluate_every=3,
    samples=100,
    epsilons=(0.0, 0.1, 0.2),
    strict_epsilons=(0.0, 0.1),
    strict_samples=50,
    restarts=2,
    tuning_epochs=2,
    tuning_rounds=3,
    held_out=60,
    candidates=2,
    slice={"train_samples": 640, "model": "mlp"},
    quick=True,
)
