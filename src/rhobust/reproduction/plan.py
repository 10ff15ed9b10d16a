"""The trainings that are left to do, from what was asked and what the files hold.

It is asked again after every training that ends. So what depends on a choice (the run with the knob that did best on
held-out data) appears once the choice can be made, and going on after an interruption is no case of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rhobust.method import FEDERATED, find_method
from rhobust.reproduction.experiments import FIGURES, Experiment, Scale

Results = Mapping[str, Mapping[str, Any]]
"""What jobs came to, by their name."""

_WORKERS, _BATCH, _WORKER_BATCH = 10, 128, 64  # section VI
_VALIDATED_AT = [0.0, 0.1, 0.2, 0.3, 0.4]
_TRAINING_IMAGES = 60_000
_NEVER = 10**9  # a job that is cut short starts again: it is minutes, not hours
_SMALLEST_STEP = 500  # samples; a smaller step takes as long: beside other jobs it waits for its turn, kernel by kernel
_LOOK_SAMPLES, _LOOK_GRADIENTS = 1000, 50  # what a measurement in the middle of a federated training costs


@dataclass(frozen=True)
class Job:
    """One training and what is measured of it."""

    name: str
    """figure/table/method/seed, or figure/tuning/method/knob=value."""
    training: Mapping[str, Any]
    """Settings of the run."""
    measuring: Mapping[str, Any]
    """The kind of measurement and its settings."""

    @property
    def asked(self) -> dict[str, Any]:
        """All that the numbers depend on; a result that was asked for otherwise is another's."""
        return {"training": dict(self.training), "measuring": dict(self.measuring)}

    @property
    def tunes(self) -> bool:
        """Whether a choice waits for it."""
        return bool(self.measuring["kind"] == "validation")

    @property
    def cost(self) -> float:
        """About how much work it is, in passes of one sample through the network."""
        name = self.training["method"]
        gradients = find_method(FEDERATED.get(name, name)).maximizer.mean_gradients
        if "rounds" in self.training:
            local_steps = 5 if name == "fedavg" else 1
            steps = _WORKERS * local_steps if local_steps > 1 else 1  # one gradient each is one batch of all
            seen = self.training["rounds"] * max(_WORKERS * _WORKER_BATCH * local_steps, steps * _SMALLEST_STEP)
        else:
            seen = self.training["epochs"] * self.training.get("train_samples", _TRAINING_IMAGES)
        return float(seen * (2 * gradients + 3)) + self._measuring_cost

    @property
    def _measuring_cost(self) -> float:
        how = self.measuring
        if how["kind"] == "rounds":
            looks = self.training["rounds"] / self.training["evaluate_every"]
            return 2 * _LOOK_GRADIENTS * _LOOK_SAMPLES * float(looks)
        attacked = sum(epsilon > 0 for epsilon in how["epsilons"])
        if how["kind"] == "validation":
            return 2 * 40 * float(how["held_out"] * attacked)
        strict = 40 * how["restarts"] * how["strict_samples"] * sum(epsilon > 0 for epsilon in how["strict_epsilons"])
        return 2 * float(21 * how["samples"] * attacked + strict)


@dataclass(frozen=True)
class Choice:
    """The value of a knob that did best on held-out training data."""

    knob: str
    value: float
    errors: Mapping[float, float]
    """Of every candidate: the mean over epsilon of the validation error under PGD."""
    as_paper: bool
    """Whether it is the paper's own value, so that the paper's run is the tuned one."""

    @property
    def at_edge(self) -> bool:
        """Whether a value beyond the grid might have done better still."""
        return self.value in (min(self.errors), max(self.errors))


def plan(figures: Iterable[str], seeds: int, scale: Scale, results: Results) -> list[Job]:
    """Every job that can be done now and is not done, in the order to begin them.

    >>> from rhobust.reproduction.experiments import FULL
    >>> [job.name for job in plan(["figure5"], 1, FULL, {})][-1]
    'figure5/paper/drfl-literal/0'
    """
    left = [
        job for name in figures for job in known_jobs(name, seeds, scale, results) if not is_done(job, results)
    ]  # what others wait for comes first, then the longest: then none of them ends alone
    return sorted(left, key=lambda job: (not job.tunes, -job.cost))


def foreseen(figures: Iterable[str], seeds: int, scale: Scale, results: Results) -> float:
    """About how much work is left, with that which still depends on a choice."""
    figures = list(figures)
    left = plan(figures, seeds, scale, results)
    undecided = [
        _final(name, "tuned", method, seed, FIGURES[name].paper.get(method, {}), scale).cost
        for name in figures
        for method in FIGURES[name].tunings
        for seed in range(seeds)
        if choice(name, method, scale, results) is None
    ]
    return sum(job.cost for job in left) + sum(undecided)


def is_done(job: Job, results: Results) -> bool:
    """Whether there is a result for just this."""
    return job.name in results and results[job.name]["asked"] == job.asked


def known_jobs(name: str, seeds: int, scale: Scale, results: Results) -> list[Job]:
    """Every job of a figure that is known by now, done or not."""
    figure = FIGURES[name]
    jobs = [job for method in figure.tunings for job in _candidates(name, method, scale).values()]
    for seed in range(seeds):
        jobs += [_final(name, "paper", method, seed, knobs, scale) for method, knobs in figure.paper.items()]
        for method in figure.tunings:
            chosen = choice(name, method, scale, results)
            if chosen and not chosen.as_paper:
                jobs.append(_final(name, "tuned", method, seed, {chosen.knob: chosen.value}, scale))
    return jobs


def choice(name: str, method: str, scale: Scale, results: Results) -> Choice | None:
    """What the candidates' validation errors say; none while one of them is missing. Made once, for all seeds."""
    candidates = _candidates(name, method, scale)
    if not all(is_done(job, results) for job in candidates.values()):
        return None
    errors = {value: _mean(results[job.name]["errors"]["pgd"]) for value, job in candidates.items()}
    best = min(errors, key=lambda value: errors[value])
    knob = FIGURES[name].tunings[method].knob
    return Choice(knob, best, errors, as_paper=dict(FIGURES[name].paper.get(method, {})) == {knob: best})


def _mean(errors: Mapping[str, float]) -> float:
    return sum(errors.values()) / len(errors)


def _candidates(name: str, method: str, scale: Scale) -> dict[float, Job]:
    """A short training for each value of the method's knob, judged on images it was not trained on."""
    figure, tuning = FIGURES[name], FIGURES[name].tunings[method]
    length = {"rounds": scale.tuning_rounds} if figure.federated else {"epochs": scale.tuning_epochs}
    measuring = {"kind": "validation", "held_out": scale.held_out, "epsilons": _VALIDATED_AT}
    return {
        value: Job(
            f"{name}/tuning/{method}/{tuning.knob}={value:g}",
            _training(figure, method, 0, scale) | length | {tuning.knob: value},
            measuring,
        )
        for value in scale.grid(tuning)
    }


def _final(name: str, table: str, method: str, seed: int, knobs: Mapping[str, float], scale: Scale) -> Job:
    """A whole training, judged on test images."""
    figure = FIGURES[name]
    training = _training(figure, method, seed, scale) | dict(knobs)
    measuring: dict[str, Any] = {
        "kind": "errors",
        "samples": scale.samples,
        "epsilons": list(scale.epsilons),
        "strict_samples": scale.strict_samples,
        "strict_epsilons": list(scale.strict_epsilons),
        "restarts": scale.restarts,
    }
    if figure.federated:
        training |= {"rounds": scale.rounds, "evaluate_every": scale.evaluate_every}
        measuring = {"kind": "rounds"}
    else:
        training |= {"epochs": scale.epochs}
    return Job(f"{name}/{table}/{method}/{seed}", training, measuring)


def _training(figure: Experiment, method: str, seed: int, scale: Scale) -> dict[str, Any]:
    shared = {"data": figure.data, "method": method, "seed": seed, "checkpoint_every": _NEVER, **scale.slice}
    if figure.federated:
        return shared | {"workers": _WORKERS, "partition": figure.partition, "batch_size": _WORKER_BATCH}
    return shared | {"batch_size": _BATCH, "log_every": 25}
