"""A text classifier, robust to moves of its word embeddings: trained, and attacked.

Which part of scikit-learn does a sentence of its documentation come from?
"""

import inspect
import re

import torch
from sklearn import cluster, linear_model, metrics, preprocessing
from torch import Tensor, nn

import rhobust

PARTS, LENGTH, WIDTH = (cluster, linear_model, metrics, preprocessing), 20, 16
MOVES = rhobust.Perturb("embedding", mask="mask")  # the embeddings move; padding stays and costs nothing


class Classifier(nn.Module):
    """The mean embedding of the words that are no padding, and a layer on it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(words, WIDTH, padding_idx=0), nn.Linear(WIDTH, len(PARTS))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Class scores, (B, classes)."""
        some = mask[..., None]
        scores: Tensor = self.out((self.embedding(tokens) * some).sum(1) / some.sum(1).clamp_min(1))
        return scores


label_of: dict[tuple[str, ...], int] = {}
for label, part in enumerate(PARTS):
    text = " ".join(inspect.getdoc(getattr(part, name)) or "" for name in part.__all__)
    for sentence in re.split(r"\.\s|\n\n|>>>", text):
        words = re.findall(r"[a-z]{3,}", sentence.lower())[:LENGTH]
        if len(words) > 7:
            label_of.setdefault(tuple(words), label)
number = {word: 1 + i for i, word in enumerate(sorted({word for words in label_of for word in words}))}
order = torch.randperm(len(label_of), generator=torch.Generator().manual_seed(0))
tokens = torch.tensor([[number[word] for word in words] + [0] * (LENGTH - len(words)) for words in label_of])[order]
y = torch.tensor(list(label_of.values()))[order]
train, test = (
    ({"tokens": tokens[part], "mask": tokens[part] != 0}, y[part]) for part in (slice(300, None), slice(300))
)
for method, radius in (("erm", None), ("spgda", 0.3)):
    torch.manual_seed(0)
    model = Classifier(len(number) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    rhobust.fit(model, train, method=method, radius=radius, epochs=12, perturb=MOVES, optimizer=optimizer)
    found = rhobust.evaluate(model, test, perturb=MOVES, attacks=["cascade-l2"], epsilons=[0.0, 0.5, 1.0])
    print(method, found, sep="\n")
