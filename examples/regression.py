"""A regression from training to proof: the progression of diabetes after a year, from ten measurements.

    python examples/regression.py

A linear model is fitted to the worst case in a Wasserstein ball. It is then compared with plain least squares: RMSE on
clean and on attacked test samples, and a proved bound on the squared error of any data in the ball.
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

import rhobust
from rhobust.losses import squared_error

TRAINING = slice(342)  # of 442 patients


def standardized(part: torch.Tensor) -> torch.Tensor:
    """With mean 0 and deviation 1 of every column of the training part: radius and RMSE are then in deviations."""
    return (part - part[TRAINING].mean(0)) / part[TRAINING].std(0)


def trained(method: str, radius: float | None, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """A linear model, trained by a method."""
    torch.manual_seed(0)
    model = nn.Linear(10, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    print(rhobust.fit(model, (x, y), method=method, radius=radius, loss=squared_error, epochs=150, optimizer=optimizer))
    return model


def main() -> None:
    """Fit, evaluate, certify; print each."""
    x, y = (standardized(torch.as_tensor(part).float()) for part in load_diabetes(return_X_y=True))
    test = x[TRAINING.stop :], y[TRAINING.stop :]
    for method, radius in (("erm", None), ("spgd", 0.1)):
        print(f"--- {method}")
        model = trained(method, radius, x[TRAINING], y[TRAINING])
        print(rhobust.evaluate(model, test, loss=squared_error, epsilons=[0.0, 0.1, 0.3]), end="\n\n")
        print(rhobust.certify(model, test, loss=squared_error, radii=[0.1, 0.5]), end="\n\n")


if __name__ == "__main__":
    main()
