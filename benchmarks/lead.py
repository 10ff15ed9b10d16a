"""A lead: ideas for training with one gradient, as settings; and the bare training that follows it.

What a training knows besides the weights is in tensors that change in place, so that on a GPU a step is a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax, softplus

from rhobust.averaging import WeightAverage
from rhobust.costs import per_sample, rows
from rhobust.data import Samples
from rhobust.margin import error_length, margin_length
from rhobust.memory import Memory
from rhobust.undisturbed import undisturbed

BOUNDS, LR, SEED = (-1.0, 1.0), 1e-3, 0
GAMMA_RATE = 0.05
LEAST_LOSS = 1.2e-7  # below it a loss says nothing about its margin
LEAST_RISE = 1e-3  # a promised rise below it is nothing to judge a line by
TOLD = ("spent", "promised", "kept", "trust", "noise")
WARM_UP = 10  # steps that are launched one by one before any is captured
SCHEDULED = 50  # steps from one change of the rate, or of the warm-up, to the next


@dataclass(frozen=True)
class Lead:
    """The settings of a training; those left as they are do nothing."""

    kind: str
    """How far samples move: a "ball", all alike; an "error" or a "margin", each as far as pays on its linear margin."""
    epsilon: float = 0.0
    """How far those of a ball move."""
    radius: float = 0.0
    """How much the others spend: E c, for c = ||.||_inf^2, by the multiplicative rule for gamma."""
    gamma_min: float = 1e-3
    """gamma goes no lower: with little loss left, a large radius asks for that."""
    cap: float = math.inf
    """Longer moves of the others are cut here; ErrorAscent(cap) finds the best one below its cap instead."""
    floor: float = 0.0
    """No sample moves less."""
    noise: float = 0.0
    """Half-width of the uniform noise on a sample, before it moves and at no cost."""
    amplitudes: bool = False
    """Each sample's noise has a random half-width of its own, between zero and twice `noise`."""
    blocks: int = 1
    """The noise is constant on squares of so many pixels a side."""
    mix: float = 1.0
    """This share of the noise comes in blocks, the rest pixel by pixel."""
    guard: float = 0.0
    """The noise grows while the mean loss is less than this share of the promised one, and shrinks while it is more."""
    fraction: float = 1.0
    """A sample goes a random share of its way, from this one to all of it."""
    trust: float = 0.0
    """A sample has a cap of its own, halved where less than this share of its margin's promise was kept."""
    calibrated: bool = False
    """Slopes are multiplied by the share of their promise that all samples together have kept lately."""
    steps: int = 1
    """Gradients of a climb; number t goes 1 / sqrt(t) of the way to its answer."""
    every: int = 0
    """Turns: every so many training steps, the first among them, climbs take `more` gradients."""
    more: int = 3
    half: str = ""
    """A second gradient for half of the batch: "random", or where the promise "failed" worst the last time."""
    memory: float = 0.0
    """A climb begins this share of the way to where the sample's last one ended."""
    way: float = 1.0
    """A climb goes this share of the way to the answer of its gradient."""
    consistency: float = 0.0
    """Weight of the KL divergence from the prediction where the climb begins, held fixed, to that where it ends."""
    label_smoothing: float = 0.0
    weight_decay: float = 0.0
    falling_rate: bool = False
    """The learning rate falls to zero, linearly."""
    warm_up: int = 0
    """Epochs in which moves and noise grow from nothing to their full size."""
    averages: Sequence[float] = (0.999,)
    """Decays of the averages of the weights; each is evaluated."""

    def climbs(self, step: int) -> int:
        """Gradients of the climbs in a training step."""
        return self.more if self.every and step % self.every == 0 else self.steps

    @property
    def gradients(self) -> float:
        """For a sample in a training step, on average."""
        turns = (self.more - self.steps) / self.every if self.every else 0.0
        return self.steps + turns + (0.5 if self.half else 0.0)


class Centers(NamedTuple):
    """The samples of a batch as a climb meets them."""

    z: Tensor  # with noise, (B, ...)
    y: Tensor
    trust: Tensor
    share: Tensor  # uniform on [0, 1]: of the way that is left to chance


class Move(NamedTuple):
    """Where a climb has come to, and the line that its last gradient drew through -margin."""

    zeta: Tensor
    base: Tensor  # the line at z
    promised: Tensor  # the line at zeta
    length: Tensor  # ||zeta - z||_inf


def minus_margin(loss: Tensor) -> Tensor:
    """-m, where loss = softplus(-m)."""
    loss = loss.clamp_min(LEAST_LOSS)
    return loss + torch.log(-torch.expm1(-loss))


class Training:
    """A model that is trained by a lead, on data that stay in memory, in batches that are all full."""

    def __init__(self, lead: Lead, model: nn.Module, data: Samples, epochs: int, batch_size: int) -> None:
        x = data.x
        self.lead, self.model, self.data, self.epochs = lead, model, data, epochs
        self.cuda, self.batches = x.is_cuda, len(data) // batch_size
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=x.new_tensor(LR),  # a tensor: a graph reads it again
            weight_decay=lead.weight_decay,
            capturable=self.cuda,
            fused=self.cuda or None,
        )
        self.averages = {decay: WeightAverage(model, decay) for decay in lead.averages}
        self.memory = Memory(x, lead.memory) if lead.memory else None
        self.gamma, self.noise = x.new_ones(()), x.new_tensor(lead.noise)
        self.warmth, self.calibration = x.new_ones(()), x.new_ones(())  # factors of lengths, and of slopes
        self.trust = x.new_ones(len(x))
        self.faith = x.new_zeros(len(x))  # the share of its promise that each sample's line kept last
        self.x, self.y = x[:batch_size].clone(), data.y[:batch_size].clone()
        self.at = torch.arange(len(self.x), device=x.device)
        self.order = torch.Generator(x.device).manual_seed(SEED)
        self.sums, self.history = x.new_zeros(4), dict[int, dict[str, float]]()
        self.steps = 0
        self.smoothed, self.propose = self._smoothed, self._propose
        if self.cuda:
            self.smoothed, self.propose = torch.compile(self._smoothed), torch.compile(self._propose)
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def train(self) -> None:
        """All epochs; of each, what moves cost, what lines promised and what was kept, how trust and noise stand."""
        for epoch in range(1, self.epochs + 1):
            order = torch.randperm(len(self.data), device=self.x.device, generator=self.order)
            self.sums.zero_()
            for at in torch.split(order, len(self.x))[: self.batches]:
                self.take(at)
            found = [*(self.sums / self.batches).tolist(), round(float(self.noise), 3)]
            self.history[epoch] = {name: round(value, 4) for name, value in zip(TOLD, found, strict=True)}

    def take(self, at: Tensor) -> None:
        """A training step on the samples numbered `at`."""
        self.at.copy_(at)
        torch.index_select(self.data.x, 0, self.at, out=self.x)
        torch.index_select(self.data.y, 0, self.at, out=self.y)
        if self.steps % SCHEDULED == 0:
            self._schedule()
        self._launch(self.lead.climbs(self.steps))
        for average in self.averages.values():
            average.update()
        self.steps += 1

    def _schedule(self) -> None:
        if self.lead.falling_rate:
            left = 1 - self.steps / (self.epochs * self.batches)
            self.optimizer.param_groups[0]["lr"].fill_(LR * left)
        if self.lead.warm_up:
            self.warmth.fill_(min(1.0, (self.steps + SCHEDULED) / (self.lead.warm_up * self.batches)))

    def _launch(self, climbs: int) -> None:
        """The step, which on a GPU is captured once for each depth, and replayed from then on."""
        if not self.cuda:
            self.step(climbs)
        elif self.steps < WARM_UP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.step(climbs)
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if climbs not in self.graphs:
                self.graphs[climbs] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graphs[climbs], stream=self.stream):
                    self.step(climbs)
            self.graphs[climbs].replay()

    def step(self, climbs: int) -> None:
        """Climb, descend, and adapt to what came of it."""
        lead, centers = self.lead, self._centers()
        start = centers.z if self.memory is None else (centers.z + self.memory.recall(self.at)).clamp(*BOUNDS)
        move, before = self._climb(centers, start, 1)
        for t in range(2, climbs + 1):
            move, _ = self._climb(centers, move.zeta, t)
        if lead.half:
            move = self._half_again(centers, move)
        logits = self._logits(move.zeta)
        loss = cross_entropy(logits, self.y, reduction="none", label_smoothing=lead.label_smoothing)
        total = loss.mean()
        if lead.consistency:
            total = total + lead.consistency * kl_div(log_softmax(logits, 1), softmax(before, 1), reduction="batchmean")
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._adapt(centers, move, loss.detach())

    def _centers(self) -> Centers:
        # All are drawn, needed or not: leads that differ in a setting see the same noise.
        wave, trust = 2 * torch.rand_like(self.x) - 1, self.trust[self.at]
        amplitude, share = torch.rand_like(trust), torch.rand_like(trust)
        if self.lead.blocks > 1:
            wave = self.lead.mix * self._blocks() + (1 - self.lead.mix) * wave
        return Centers(self.smoothed(self.x, wave, amplitude), self.y, trust, share)

    def _blocks(self) -> Tensor:
        """Uniform on [-1, 1], the same on every block of pixels."""
        side, (count, channels, height, width) = self.lead.blocks, self.x.shape
        number = -(-width // side)
        coarse = 2 * torch.rand(count, channels, number, number, dtype=self.x.dtype, device=self.x.device) - 1
        return coarse.repeat_interleave(side, 2).repeat_interleave(side, 3)[..., :height, :width]

    def _smoothed(self, x: Tensor, wave: Tensor, amplitude: Tensor) -> Tensor:
        width = self.noise * self.warmth
        if self.lead.amplitudes:
            width = 2 * width * per_sample(amplitude, x)
        return (x + width * wave).clamp(*BOUNDS)

    def _climb(self, centers: Centers, zeta: Tensor, t: int) -> tuple[Move, Tensor]:
        """One gradient at zeta and the move it asks for; also the logits at zeta."""
        zeta = zeta.detach().requires_grad_()
        with undisturbed(self.model):
            logits = self._logits(zeta)
            loss = cross_entropy(logits, centers.y, reduction="none")
            (slope,) = torch.autograd.grad(loss.sum(), zeta)
        way = self.lead.way / math.sqrt(t)
        return self.propose(centers, zeta.detach(), loss.detach(), slope, way), logits.detach()

    def _propose(self, centers: Centers, zeta: Tensor, loss: Tensor, slope: Tensor, way: float) -> Move:
        z = centers.z
        fall = slope / per_sample(-torch.expm1(-loss.clamp_min(LEAST_LOSS)), slope)  # gradient of -margin
        base = minus_margin(loss) - rows(fall * (zeta - z)).sum(1)
        length = self._length(base, rows(fall.abs()).sum(1), centers)
        target = (z + per_sample(length, z) * fall.sign()).clamp(*BOUNDS)
        zeta = zeta + (target - zeta) * way
        moved = zeta - z
        return Move(zeta, base, base + rows(fall * moved).sum(1), rows(moved.abs()).amax(1))

    def _length(self, base: Tensor, rate: Tensor, centers: Centers) -> Tensor:
        """How far each sample is to go along the signs of its gradient, (B,)."""
        lead, room = self.lead, self.warmth * centers.trust
        if lead.kind == "ball":
            length = lead.epsilon * room
        else:
            best = {"error": error_length, "margin": margin_length}[lead.kind]
            length = best(base, rate * self.calibration, self.gamma).minimum(lead.cap * room)
        return (length * (lead.fraction + (1 - lead.fraction) * centers.share)).clamp_min(lead.floor)

    def _half_again(self, centers: Centers, move: Move) -> Move:
        count = len(self.x) // 2
        chosen = torch.arange(count, device=self.x.device)  # batches are shuffled: these are random
        if self.lead.half == "failed":
            chosen = self.faith[self.at].topk(count, largest=False).indices
        again, _ = self._climb(Centers(*(part[chosen] for part in centers)), move.zeta[chosen], 2)
        return Move(*(part.index_copy(0, chosen, other) for part, other in zip(move, again, strict=True)))

    def _logits(self, zeta: Tensor) -> Tensor:
        with torch.autocast(zeta.device.type, torch.bfloat16, enabled=self.cuda):
            logits: Tensor = self.model(zeta)
        return logits.to(zeta.dtype)

    @torch.no_grad()
    def _adapt(self, centers: Centers, move: Move, loss: Tensor) -> None:
        lead, cost, loss = self.lead, move.length.square(), loss.clamp_min(LEAST_LOSS)
        if lead.kind != "ball":
            radius = lead.radius * self.warmth**2
            excess = (cost.mean() - radius) / radius
            self.gamma.mul_(torch.exp(GAMMA_RATE * excess.clamp(-1, 1))).clamp_min_(lead.gamma_min)
        rise, promised = minus_margin(loss) - move.base, move.promised - move.base
        kept = self.faith[self.at] = rise / promised.clamp_min(LEAST_RISE)
        if lead.calibrated:
            share = rise.sum() / promised.sum().clamp_min(LEAST_RISE)
            self.calibration.lerp_(share.clamp(0.2, 1.2), 0.01)
        if lead.trust:
            longer, shorter = (centers.trust * 1.5).clamp_max(1), centers.trust * 0.5
            self.trust[self.at] = torch.where(kept < lead.trust, shorter, longer).clamp_min(0.1)
        expected, found = softplus(move.promised).mean(), loss.mean()
        if lead.guard:
            self.noise.mul_(torch.exp(0.002 * (lead.guard - found / expected).clamp(-1, 1))).clamp_(0.05, 1.0)
        if self.memory is not None:
            self.memory.keep(self.at, centers.z, move.zeta)
        self.sums.add_(torch.stack([cost.mean(), expected, found, centers.trust.mean()]))
