"""Examples for a report: a few test samples, attacked, and what the models predict."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from rhobust.attacks.attack import attack, find_attack, norm_of
from rhobust.attacks.cascade import CASCADES
from rhobust.box import pair
from rhobust.data.samples import REGRESSION
from rhobust.errors import ConfigError, DataError, RunError
from rhobust.evaluation.evaluation import WORST
from rhobust.losses import cross_entropy
from rhobust.report.gather import Report
from rhobust.report.rows import Row
from rhobust.runs.load import load
from rhobust.runs.run_data import run_data

_SAMPLES, _ROWS = 4, 4


@dataclass(frozen=True)
class Reading:
    """One model's example: PNG images as data URIs, and what the model reads."""

    name: str
    method: str
    perturbation: str
    perturbed: str
    before: str
    after: str


@dataclass(frozen=True)
class Example:
    """One test sample, and what every shown model makes of it under attack."""

    clean: str
    label: str
    readings: list[Reading]


@dataclass(frozen=True)
class Examples:
    """Examples under one attack; none, with the reason, where there is nothing to see."""

    found: list[Example]
    attack: str = ""
    epsilon: float = 0.0
    reason: str = ""


def is_image(shape: Size) -> bool:
    """Whether samples of this shape are gray or RGB images, (1 or 3, height, width)."""
    return len(shape) == 3 and shape[0] in (1, 3)


def examples(report: Report, seed: int = 0) -> Examples:
    """The first test samples, and some rows from the best to the worst under attack, attacked by PGD."""
    where = report.middle()
    if where is None:
        why = "No attack in a ball was measured" + (" of all runs" if report.in_balls() else "")
        return Examples([], reason=f"{why}, so no examples are shown.")
    if len(report.data) > 1:
        return Examples([], reason="The rows were trained on different data, so no examples are shown.")
    config = report.rows[0].first.config
    if config.task == REGRESSION:
        return Examples([], reason="A regression reads no class, so no examples are shown.")
    try:
        data = run_data(config, load(report.rows[0].first.run.path).table)
        digest = data.test.digest()
        for row in report.rows:
            row.first.run.check_data(test=digest)
    except (ConfigError, DataError, RunError) as problem:
        return Examples([], reason=f"The data are not there any more as they were, so no examples are shown: {problem}")
    if not is_image(data.test.x.shape[1:]):
        return Examples([], reason="The data are not images, so no examples are shown.")
    by_norm = {norm_of(pgd): pgd for pgd in ("pgd", "pgd-l2")}
    several = {called: norm for norm, called in WORST.items()} | CASCADES
    name = by_norm[several[where[0]]] if where[0] in several else where[0]
    x, y = data.test.x[:_SAMPLES], data.test.y[:_SAMPLES]
    found = [
        Example(_png(image, pair(data.bounds)), data.test.called(int(label)), [])
        for image, label in zip(x, y, strict=True)
    ]
    for row in _spread_out(report.ranked()):
        model = load(row.first.run.path)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            zeta = attack(model, x, y, find_attack(name)(where[1]), loss=cross_entropy, bounds=data.bounds).zeta
        with torch.no_grad():
            before, after = model(x).argmax(1), model(zeta).argmax(1)
        reach = float((zeta - x).abs().max()) or 1.0
        for i, example in enumerate(found):
            moved = _png(zeta[i] - x[i], (-reach, reach))
            images = (moved, _png(zeta[i], pair(data.bounds)))
            read = (data.test.called(int(labels[i])) for labels in (before, after))
            example.readings.append(Reading(row.name, row.method, *images, *read))
    return Examples(found, name, where[1])


def _spread_out(rows: list[Row]) -> list[Row]:
    """At most `_ROWS` rows, evenly from the first to the last."""
    if len(rows) <= _ROWS:
        return rows
    return [rows[round(i * (len(rows) - 1) / (_ROWS - 1))] for i in range(_ROWS)]


def _png(image: Tensor, bounds: tuple[float, float]) -> str:
    """An image (1 or 3, height, width) as a data URI; bounds are black and white."""
    from PIL import Image

    scaled = ((image - bounds[0]) / (bounds[1] - bounds[0])).clamp(0, 1) * 255
    pixels = scaled.round().to(torch.uint8).permute(1, 2, 0).squeeze(2).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
