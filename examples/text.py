"""A text classifier: robust to moves of its word embeddings, trained and attacked.

Which part of scikit-learn does a sentence of its documentation come from?
"""

import inspect
import re

import torch
from sklearn import cluster, linear_model, metrics, preprocessing
from torch import Tensor, nn

import rhobust

PARTS = (cluster, linear_model, metrics, preprocessing)
LENGTH, WIDTH = 20, 16


class Classifier(nn.Module):
    """The mean embedding of the words that are no padding, and a layer on it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH, padding_idx=0)
        self.out = nn.Linear(WIDTH, len(PARTS))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Class scores, (B, classes)."""
        some = mask[..., None]
        scores: Tensor = self.out((self.embedding(tokens) * some).sum(1) / some.sum(1).clamp_min(1))
        return scores


def sentences() -> tuple[Tensor, Tensor, int]:
    """Token numbers with 0 behind the last, the classes, and the number of words."""
    label_of: dict[tuple[str, ...], int] = {}
    for label, part in enumerate(PARTS):
        text = " ".join(inspect.getdoc(getattr(part, name)) or "" for name in part.__all__)
        for sentence in re.split(r"\.\s|\n\n|>>>", text):
            words = tuple(re.findall(r"[a-z]{3,}", sentence.lower())[:LENGTH])
            if len(words) > 7:
                label_of.setdefault(words, label)
    found = list(label_of.items())
    number = {word: 1 + i for i, word in enumerate(sorted({word for words, _ in found for word in words}))}
    rows = [[number[word] for word in words] + [0] * (LENGTH - len(words)) for words, _ in found]
    return torch.tensor(rows), torch.tensor([label for _, label in found]), len(number) + 1


tokens, y, words = sentences()
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
train, test = order[:-300], order[-300:]


def of(chosen: Tensor) -> dict[str, Tensor]:
    """Some of the inputs."""
    return {"tokens": tokens[chosen], "mask": tokens[chosen] != 0}


moves = rhobust.Perturb("embedding", mask="mask")  # the embeddings move; padding stays and costs nothing
for method, radius in (("erm", None), ("spgda", 0.3)):
    torch.manual_seed(0)
    model = Classifier(words)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    rhobust.fit(
        model, (of(train), y[train]), method=method, radius=radius, epochs=12, perturb=moves, optimizer=optimizer
    )
    found = rhobust.evaluate(
        model, (of(test), y[test]), perturb=moves, attacks=["cascade-l2"], epsilons=[0.0, 0.5, 1.0]
    )
    print(
        method, *(f"error at epsilon {cell.epsilon:g}: {100 * cell.error:.1f} %" for cell in found.attacked), sep="; "
    )
