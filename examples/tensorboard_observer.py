"""Write the curves of a training for TensorBoard, and end it early on held-out digits.

pip install tensorboard
python examples/tensorboard_observer.py
tensorboard --logdir tensorboard
"""

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

import rhobust
from rhobust.data import digits
from rhobust.training.record import Record


class TensorBoard(rhobust.Observer):
    """Writes what happens as scalars; ends the training when `patience` epochs brought no better error."""

    def __init__(self, folder: str, x: Tensor, y: Tensor, patience: int) -> None:
        self.writer, self.x, self.y = SummaryWriter(folder), x, y
        self.patience, self.errors = patience, list[float]()

    def stepped(self, record: Record) -> None:
        for name in ("loss", "value", "gamma", "rho_eff"):
            self.writer.add_scalar(f"step/{name}", getattr(record, name), record.step)

    def warned(self, message: str) -> None:
        self.writer.add_text("warning", message)
        super().warned(message)  # one of Python's warnings, too

    @torch.no_grad()
    def epoch_ended(self, number: int, model: nn.Module) -> bool:
        model.eval()  # the training puts it back
        self.errors.append(float((model(self.x).argmax(1) != self.y).float().mean()))
        self.writer.add_scalar("epoch/held-out error", self.errors[-1], number)
        return min(self.errors) not in self.errors[-self.patience :]


def main() -> None:
    torch.manual_seed(0)
    data = digits()
    held_out = torch.arange(len(data.train.x)) % 5 == 0
    x, y = data.train.x, data.train.y
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    watch = TensorBoard("tensorboard", x[held_out], y[held_out], patience=5)
    rest = x[~held_out], y[~held_out]
    trained = rhobust.fit(model, rest, method="spgda", radius=2, epochs=200, bounds=(-1, 1), observer=watch)
    watch.writer.close()
    best = min(watch.errors)
    print(
        f"ended after {len(watch.errors)} of 200 epochs: held-out error {best:.1%} in epoch {watch.errors.index(best)}"
    )
    print(f"E[c] {trained.rho_eff:.2f} of rho 2; see the curves with: tensorboard --logdir tensorboard")


if __name__ == "__main__":
    main()
