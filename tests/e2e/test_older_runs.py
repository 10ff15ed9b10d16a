"""Old names of settings: an older run directory is read, resumed and reported on; a user's own settings are refused."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app
from rhobust.errors import ConfigError
from rhobust.method import methods
from rhobust.runs.config import Config
from rhobust.runs.start import train_run
from rhobust.support.renamed import RENAMED
from rhobust.support.setting import settings_of
from rhobust.support.state_files import read_state
from rhobust.training.fit import fit
from rhobust.training.observers import Silent
from rhobust.training.record import Record

SHARED = """\
data = "digits"
limit = 150
model = "linear"
batch_size = 50
optimizer = "adam"
cost = "l2"
kappa = inf
regularizer = "none"
gamma_min = 0.001
device = "cpu"
precision = "float32"
threads = 1
log_every = 1
momentum = 0.0
checkpoint_every = 4
"""
CENTRAL = (
    SHARED
    + """\
method = "spgda"
radius = 1.0
epochs = 5
learning_rate = 0.01
gamma_rule = "multiplicative:0.05"
seed = 0
average = 0.9
steps = [1, 1, 1, 1, 3]
cap = inf
gamma = 1.0
noise = 0.0
temper = 0.0
"""
)
FEDERATED = (
    SHARED
    + """\
method = "spgda"
radius = 1.0
learning_rate = 0.001
gamma_rule = "multiplicative:0.05"
seed = 0
steps = [1, 1, 1, 1, 3]
cap = inf
gamma = 1.0
noise = 0.0
temper = 0.0
rounds = 11
workers = 5
partition = "iid"
participation = 1.0
local_steps = 2
local_rate = 0.05
server = "step"
aggregator = "median"
weights = "equal"
quorum = 1
liars = 1
lie = "noise:3"
"""
)
AVERAGED = FEDERATED.replace('server = "step"', 'server = "average"')
NEW: dict[str, tuple[str, dict[str, Any]]] = {
    "central": (CENTRAL, {"ema": 0.9}),
    "federated": (FEDERATED, {"server_update": "gradient"}),
    "averaged": (AVERAGED, {"server_update": "average"}),
}
"""Settings by their old names, and some of them by their new ones."""


class Stop(BaseException):
    """Ends a training at once, as a lost machine does."""


class Breaks(Silent):
    """Stops everything after a step."""

    def stepped(self, record: Record) -> None:
        if record.step == 6:
            raise Stop


def settings_now(old: str, new: dict[str, Any]) -> Config:
    """The same settings by their new names, written by hand."""
    shared: dict[str, Any] = {"model": "linear", "train_samples": 150, "batch_size": 50, "threads": 1, "device": "cpu"}
    shared |= {"method": "spgda", "radius": 1.0, "checkpoint_every": 4}
    if old == CENTRAL:
        return Config.resolve(shared, {"epochs": 5, "learning_rate": 0.01}, new)
    attack = {"byzantine": 1, "byzantine_attack": "noise:3", "aggregator": "median"}
    local = {"rounds": 11, "workers": 5, "local_steps": 2, "local_learning_rate": 0.05}
    return Config.resolve(shared, attack, local, new)


def command(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", NEW)
def test_an_older_run_goes_on_and_is_read_by_every_command(name: str, tmp_path: Path) -> None:
    text, new = NEW[name]
    whole, run = train_run(tmp_path / "whole", settings_now(text, new)), tmp_path / "old"
    run.mkdir()
    for file in ("data.json", "environment.json"):
        shutil.copy(whole.path / file, run)
    (run / "config.toml").write_text(text)
    with pytest.raises(Stop):
        train_run(run, None, Breaks())  # begun anew: there is no checkpoint yet
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert name != "central" or read_state(checkpoint)["state"]["average"]  # as older versions wrote it
    command("train", "--resume", run)
    assert (run / "config.toml").read_text() == text
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (run / file).read_bytes() == (whole.path / file).read_bytes()
    assert rhobust.load(run).config == whole.config()
    command("evaluate", run, "--attacks", "fgsm", "--epsilons", "0.1", "--samples", "20")
    command("certify", run, "--radii", "0.5", "--samples", "10")
    command("report", run, "--samples", "10", "--out", tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text()
    (making,) = [line for line in page.splitlines() if line.startswith("rhobust train")]
    assert not {word.split("=")[0] for word in shlex.split(making)} & {*RENAMED}
    run.rename(tmp_path / "aside")
    command(*shlex.split(making)[1:])
    assert (run / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert (run / "config.toml").read_bytes() == (whole.path / "config.toml").read_bytes()


def test_a_new_name_is_a_setting_and_an_old_one_is_nothing() -> None:
    config = Config.resolve({"method": "drfl", "radius": 1})
    known = {*config.settings(), *settings_of(Config)}
    assert set(RENAMED.values()) <= known
    assert not RENAMED.keys() & {*known, *(knob for method in methods().values() for knob in method.knobs)}


def test_old_names_are_one_error_with_every_other_problem(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text('kappa = -1\nlocal_rate = 0.5\nserver = "step"\n')
    words = ("federate", "--config", tmp_path / "old.toml", "--limit", "0", "--liars", "3", "--lie=white", "average=.9")
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert set(caught.value.problems) == {
        *(f"'{old}' is called '{new}' now" for old, new in RENAMED.items() if old != "server"),
        "'server' is called 'server_update' now: write server_update=gradient",
        "label_cost must be at least 0, not -1.0",
        "train_samples must be > 0, not 0",
        "unknown byzantine_attack 'white'; known: sign-flip, noise, label-flip, alie, inner-product",
        "method 'drfl' needs a radius, the bound rho on E c: such as radius=2, or 0.04 with cost=linf",
        "a federation keeps no average of its weights: drop ema",
        "local_learning_rate is for workers who take several steps: set local_steps above 1, or drop it",
    }
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [3, [1], None, "mean", "average"])
def test_an_old_name_with_any_value_is_named(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.resolve({"method": "drfl", "radius": 1, "server": value})
    old, *other = caught.value.problems
    assert old == "'server' is called 'server_update' now"
    assert len(other) == (value != "average")


def test_a_setting_that_has_both_names_has_the_value_of_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("radius = 1\nema = 0.5\naverage = 0.9\n")
    assert Config.from_toml(tmp_path / "config.toml").ema == 0.5


def test_an_option_that_never_was_one_is_told_by_its_new_name(tmp_path: Path) -> None:
    message = "--average is not an option but a setting: write ema=VALUE, without dashes"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        CliRunner().invoke(app, ["train", "--average", "0.9", "--out", str(tmp_path)], catch_exceptions=False)


def test_fit_names_the_new_keyword_beside_other_problems() -> None:
    model, data = torch.nn.Linear(3, 2), (torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ConfigError) as caught:
        fit(model, data, method="erm", average=0.99, lr=0.1)
    assert "'average' is called 'ema' now" in caught.value.problems
    assert len(caught.value.problems) == 2
