"""A network of your own in the command: this file holds its factory, and, run as a script, trains and measures it.

The same by hand:

    rhobust train --model examples/own_model.py:net model_args.width=16 --method spgda --radius 2 --out RUN
    rhobust evaluate RUN
"""

import tempfile
from pathlib import Path

import torch
from torch import Size, Tensor, nn

import rhobust
from rhobust.data import digits
from rhobust.runs.config import Config
from rhobust.runs.start import train_run


class Residual(nn.Module):
    """x + f(x), which keeps the number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ELU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def net(shape: Size, outputs: int, width: int = 16, blocks: int = 1) -> nn.Module:
    """A small residual network for images of any size; `width` and `blocks` are its `model_args`."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, stride=2, padding=1),
        nn.ELU(),
        *(Residual(width) for _ in range(blocks)),
        nn.Flatten(),
        nn.Linear(width * -(-shape[1] // 2) * -(-shape[2] // 2), outputs),
    )


def main(epochs: int = 15) -> None:
    """Train the network plainly and robustly, and print the errors of both."""
    test = digits().test
    own = {"data": "digits", "model": f"{__file__}:net", "model_args": {"width": 16}, "epochs": epochs, "device": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        robust: dict[str, dict[str, float]] = {"erm": {}, "spgda": {"radius": 2.0}}
        for method, more in robust.items():
            run = train_run(Path(folder) / method, Config.resolve(own, {"method": method, **more}))
            model = rhobust.load(run.path)  # imports this file again: its digest is that of the run
            found = rhobust.evaluate(model, (test.x, test.y), bounds=model.bounds, attacks=["pgd"], epsilons=[0.2])
            print(f"{method}: clean error {found.clean:.1%}, under attack {found.error('pgd', 0.2):.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
