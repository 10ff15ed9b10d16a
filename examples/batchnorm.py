"""A network with BatchNorm, trained robustly in each way that the library offers, on scikit-learn's digits.

    python examples/batchnorm.py

Prints the error on test images, clean and under FGSM at 0.2, for each way, and what the library warns of.
"""

import warnings
from typing import Any

import torch
from torch import nn

import rhobust
from rhobust.data import digits
from rhobust.models import to_group_norm


def network() -> nn.Module:
    """A small convolutional network with BatchNorm."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def errors(model: nn.Module, **how: Any) -> tuple[float, float]:
    """Train the model; its clean error, and that under attack."""
    data = digits()
    rhobust.fit(model, (data.train.x, data.train.y), bounds=data.bounds, epochs=EPOCHS, **how)
    found = rhobust.evaluate(model, data.test, bounds=data.bounds, attacks=["fgsm"], epsilons=[0.2], checks=False)
    return found.clean, found.error("fgsm", 0.2)


EPOCHS = 15
ROBUST: dict[str, Any] = {"method": "spgda", "radius": 1.5}
WAYS: dict[str, tuple[nn.Module, dict[str, Any]]] = {
    "ERM": (network(), {"method": "erm"}),
    "ascent-eval": (network(), ROBUST),  # running statistics in the ascent, those of the batch in the weights' step
    "frozen": (network(), {**ROBUST, "batch_norm": "frozen"}),  # running statistics in both
    "GroupNorm": (to_group_norm(network()), ROBUST),  # no statistics of other samples at all
}

if __name__ == "__main__":
    print(f"{'':12} {'clean':>7} {'FGSM 0.2':>9}")
    for name, (model, how) in WAYS.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            clean, attacked = errors(model, **how)
        print(f"{name:12} {clean:7.1%} {attacked:9.1%}")
        for warning in said:
            print(f"    {warning.message}")
