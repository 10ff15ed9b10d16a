"""The result files: one for each figure, and a summary of their cost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rhobust.errors import RunError
from rhobust.reproduction.experiments import FIGURES, Scale
from rhobust.reproduction.plan import choice
from rhobust.support.files import write_json

_SUMMARY = "summary.json"
DEPLOYED = "deployed.json"
_ONCE = {
    "config": "configs",
    "environment": "environments",
}  # written once, in a list; a run has its number


class Store:
    """Results in a directory; a result is on disk before the next one is looked at."""

    def __init__(self, path: Path, scale: Scale) -> None:
        self.path, self.scale = path, scale
        self.results: dict[str, dict[str, Any]] = {}
        for name in FIGURES:
            if (path / f"{name}.json").exists():
                self.results |= read_figure(path, name, scale.quick)["runs"]

    def add(self, job: str, result: dict[str, Any]) -> None:
        """Keep a result."""
        self.results[job] = result
        name = job.partition("/")[0]
        runs = {key: self.results[key] for key in sorted(self.results) if key.startswith(f"{name}/")}
        found = {method: choice(name, method, self.scale, self.results) for method in FIGURES[name].tunings}
        choices = {
            method: {
                "knob": made.knob,
                "value": made.value,
                "errors": {f"{value:g}": error for value, error in made.errors.items()},
                "as_paper": made.as_paper,
                "at_edge": made.at_edge,
            }
            for method, made in found.items()
            if made
        }
        settings = {"figure": name, "data": FIGURES[name].data, **asdict(self.scale)}
        write_json(self.path / f"{name}.json", {"settings": settings, "choices": choices, **_packed(runs)})

    def add_session(self, session: dict[str, Any]) -> None:
        """Note what one call of the command took; a reproduction may be made in several."""
        sessions = [*read_sessions(self.path), session]
        write_json(self.path / _SUMMARY, {"quick": self.scale.quick, "sessions": sessions})


def read_figure(path: Path, name: str, quick: bool | None = None) -> dict[str, Any]:
    """One figure's file; `quick` says what it must be."""
    file = path / f"{name}.json"
    content = _read(file)
    try:
        found, content["runs"] = content["settings"]["quick"], _unpacked(content)
        sound = all("asked" in run and "errors" in run for run in content["runs"].values())
    except (KeyError, TypeError, AttributeError, IndexError):
        sound = False
    if not sound:
        raise RunError(f"{file} is damaged or not ours; put it back, or choose another --out")
    if quick is not None and found != quick:
        words = ("quick", "full") if found else ("full", "quick")
        raise RunError(f"{file} holds {words[0]} results, and {words[1]} ones are never mixed in: choose another --out")
    return content


def _packed(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Runs as they are written: what is the same in many stands once."""
    lists: dict[str, list[Any]] = {name: [] for name in _ONCE.values()}
    numbered = {
        job: run | {key: _number(run[key], lists[name]) for key, name in _ONCE.items()} for job, run in runs.items()
    }
    return lists | {"runs": numbered}


def _number(value: Any, known: list[Any]) -> int:
    """Its place in the list, which it joins if it is new."""
    if value not in known:
        known.append(value)
    return known.index(value)


def _unpacked(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        job: run | {key: content[name][run[key]] for key, name in _ONCE.items()} for job, run in content["runs"].items()
    }


def read_sessions(path: Path) -> list[dict[str, Any]]:
    """What the calls of the command took, the first one first."""
    file = path / _SUMMARY
    found: list[dict[str, Any]] = _read(file).get("sessions", []) if file.exists() else []
    return found


def read_deployed(path: Path) -> dict[str, Any] | None:
    """What `rhobust reproduce deployed` found, if it was run."""
    file = path / DEPLOYED
    return _read(file) if file.exists() else None


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except FileNotFoundError:
        raise RunError(f"{file} does not exist") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise RunError(f"{file} cannot be read: {problem}") from None
    return content


def session_summary(made: Iterable[dict[str, Any]], seconds: float, **other: Any) -> dict[str, Any]:
    """What a call took, and how much useful arithmetic a second that was."""
    results = list(made)
    flops = sum(result["flops"] + result["evaluation_flops"] for result in results)
    return {
        **other,
        "jobs": len(results),
        "seconds": seconds,
        "flops": flops,
        "tflops_per_second": flops / seconds / 1e12,
        "environment": results[0]["environment"] if results else None,
    }
