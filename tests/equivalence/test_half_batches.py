"""A batch in halves, gradients averaged, is the batch whole: what every engine that averages stands on."""

import pytest
import torch
from torch import nn

import rhobust
from rhobust.ascent import MarginAscent, Maximizer, Oracle, PenalizedAscent

MAXIMIZERS = [PenalizedAscent(), PenalizedAscent(steps=3, eta=0.05), Oracle(accuracy=1e-2), Oracle(), MarginAscent()]


@pytest.mark.parametrize("maximizer", MAXIMIZERS, ids=repr)
def test_two_halves_are_the_whole(maximizer: Maximizer) -> None:
    """theta and gamma, with a prox, to rounding: no sample's sup may depend on the company it is solved in."""
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).clamp(-3, 3)
    y = x[:, :3].argmax(1)
    states = []
    for parts in ([slice(None)], [slice(0, None, 2), slice(1, None, 2)]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        loss = nn.CrossEntropyLoss(reduction="none")
        objective = rhobust.RobustObjective(model, loss, radius=0.5, maximizer=maximizer, bounds=(-3, 3))
        adam = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = rhobust.ProximalOptimizer(adam, objective, regularizer=rhobust.L1(1e-3))
        for _ in range(20):
            optimizer.zero_grad()
            for part in parts:
                (objective(x[part], y[part]).value / len(parts)).backward()
            optimizer.step()
        states.append(dict(objective.named_parameters()))
    whole, halves = states
    assert whole["gamma"] != 1.0
    for name in whole:
        torch.testing.assert_close(halves[name], whole[name], rtol=1e-9, atol=1e-11)
