"""What a training shows while it runs."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from rhobust.commands.progress import TrainingProgress
from rhobust.runs.config import Config
from rhobust.runs.start import train_run

FEDERATED = Config.resolve(
    {"method": "drfl", "radius": 1, "model": "linear", "train_samples": 100, "rounds": 5, "workers": 4},
    {"batch_size": 8, "evaluate_every": 2, "threads": 1},
)


@pytest.mark.parametrize(("terminal", "quiet"), [(True, False), (True, True), (False, False)])
def test_a_look_at_the_test_error_was_asked_for_and_is_a_line_on_a_terminal_or_in_a_file(
    terminal: bool, quiet: bool, tmp_path: Path
) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=80)
    with TrainingProgress(console, "drfl", quiet) as progress:
        run = train_run(tmp_path / "run", FEDERATED, progress)
    assert isinstance(console.file, io.StringIO)
    shown = [line for line in console.file.getvalue().splitlines() if "test error" in line]
    looks = [(record["step"] + 1, record["errors"]) for record in run.metrics() if record["errors"]]
    assert [rounds for rounds, _ in looks] == [2, 4, 5]
    expected = [
        f"after {rounds} rounds: test error: "
        f"clean {errors['clean']:.1%}, ifgsm {errors['ifgsm']:.1%}, pgd {errors['pgd']:.1%}"
        for rounds, errors in looks
    ]
    assert len(shown) == (0 if quiet else 3)
    assert all(line.endswith(said) for line, said in zip(shown, expected, strict=False))
