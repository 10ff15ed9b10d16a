"""Sites as workers of a round: which are called, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rhobust.deployment.wire import Message, from_task, to_upload
from rhobust.federation.federated_engine import Workers
from rhobust.federation.messages import Task, Upload
from rhobust.training.engine import Warn

Call = Callable[[Sequence[str], str, Message, float], tuple[Mapping[str, object], Mapping[str, str]]]
"""(sites, function, argument, seconds) -> the values of the sites that answered, and why the others did not."""

_FIRST_CALL = 120.0  # seconds to load data and build a model
_RETRY = 1.0  # seconds to wait for a silent site that is called again; the others wait as long
_FIRST_PAUSE = 10.0  # seconds before a silent site is called again; doubles every time


@dataclass
class _Silence:
    """A site that is not called for now."""

    reason: str
    until: float


class RemoteWorkers(Workers):
    """Workers behind a transport, each with `deadline` seconds to answer.

    A site that misses a deadline is left out until it answers again; it is called again after ever longer pauses, for a
    short time. The server checks the answers.
    """

    def __init__(
        self,
        names: Sequence[str],
        present: Sequence[str],
        settings: Message,
        deadline: float,
        call: Call,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(names)
        self.settings, self.deadline = settings | {"workers": list(names)}, deadline
        self._call, self._clock = call, clock
        self._silent = {name: _Silence("is not connected", float("inf")) for name in names if name not in present}
        self._pauses: dict[str, float] = {}  # of the sites that fell silent and have not uploaded since

    def prepare(self, warn: Warn) -> None:
        self._prepare([name for name in self.names if name not in self._silent], _FIRST_CALL)

    def ask(self, task: Task, asked: Sequence[str]) -> Mapping[str, Upload | str]:
        """The upload of each site that answers, and for every other site the reason."""
        self._prepare([name for name in asked if name in self._silent and self._is_due(name)], _RETRY)
        present = [name for name in asked if name not in self._silent]
        answers: dict[str, Upload | str] = {name: self._silent[name].reason for name in asked if name in self._silent}
        if present:
            values, failures = self._call(present, "gradient", from_task(task), self.deadline)  # Alg. 3, line 2
            answers |= {name: _upload(value) for name, value in values.items()}
            for name in values:
                self._pauses.pop(name, None)
            for name, reason in failures.items():
                answers[name] = reason
                self._mute(name, reason)
        return answers

    def _prepare(self, names: Sequence[str], seconds: float) -> None:
        """Have sites load their data; from then on they are asked."""
        if not names:
            return
        values, failures = self._call(names, "prepare", self.settings, seconds)
        for name in names:
            problem = failures.get(name) or _problem(values.get(name))
            if problem:
                self._mute(name, problem)
            else:
                self._silent.pop(name, None)

    def _mute(self, name: str, reason: str) -> None:
        pause = self._pauses[name] = 2 * self._pauses.get(name, _FIRST_PAUSE / 2)
        self._silent[name] = _Silence(reason, self._clock() + pause)

    def _is_due(self, name: str) -> bool:
        return self._clock() >= self._silent[name].until


def _problem(value: object) -> str | None:
    """The problem that a site reports, if any."""
    if isinstance(value, dict) and isinstance(value.get("problem"), str):
        return f"failed: {printable(value['problem'], 300)} (its own log says more)"
    return None


def _upload(value: object) -> Upload | str:
    try:
        return _problem(value) or to_upload(value)
    except ValueError as problem:
        return printable(str(problem), 200)


def printable(words: str, most: int) -> str:
    """Text of a site for a log and a terminal: at most `most` characters, and no control characters."""
    return ascii(words[:most])[1:-1]
