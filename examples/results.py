"""Train a small model, measure it, and look at the results: printed as text, and drawn as figures.

    python examples/results.py [FOLDER]

The figures training.png, errors.png and certificates.png are written into the folder, by default the current one. In a
notebook a result that ends a cell shows as a table, and `.plot()` as a figure.
"""

import sys
from pathlib import Path

import torch
from matplotlib import pyplot
from torch import nn

import rhobust
from rhobust.data import digits


def main(folder: Path) -> None:
    """Fit, evaluate, certify; print each, and save its figure."""
    data = digits()  # 1,797 handwritten digits, which come with scikit-learn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trained = rhobust.fit(model, (data.train.x, data.train.y), method="spgda", radius=2.0, bounds=data.bounds)
    test = data.test.x, data.test.y
    errors = rhobust.evaluate(model, test, bounds=data.bounds, attacks=["cascade", "fgsm", "pgd"])
    few = data.test.x[:100], data.test.y[:100]
    certificates = rhobust.certify(model, few, bounds=data.bounds, radii=[0.0, 0.5, 1.0, 2.0, 4.0])
    for name, result in (("training", trained), ("errors", errors), ("certificates", certificates)):
        print(result, end="\n\n")
        result.plot().set_title(name)
        pyplot.savefig(folder / f"{name}.png", dpi=150)
        pyplot.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
