"""`epochs="auto"`: curves whose end is known, a training with a known optimum, resumption, and what is refused."""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app
from rhobust.errors import ConfigError
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.training import stopping_rule
from rhobust.training.observers import Observer, Silent
from rhobust.training.record import Record
from rhobust.training.stopping_rule import StoppingRule
from rhobust.training.trend import trends

SETTINGS: dict[str, Any] = {
    **{"data": "digits", "model": "linear", "train_samples": 100, "batch_size": 50, "learning_rate": 0.05},
    **{"method": "erm", "threads": 1, "device": "cpu"},
}
CONFIG = Config.resolve(SETTINGS, {"epochs": "auto"})


def steps(values: Sequence[float], each: int = 3) -> list[Record]:
    """`each` equal steps an epoch."""
    rest: dict[str, Any] = {"loss": 1.0, "gamma": 1.0, "rho_eff": 1.0, "accuracy": None, "gradients": 1}
    return [
        Record(step=epoch * each + i, epoch=epoch, value=value, stationarity=value, **rest)
        for epoch, value in enumerate(values)
        for i in range(each)
    ]


def end(values: Sequence[float]) -> int | None:
    """The epochs after which the rule ends a training with these means of psi."""
    rule = StoppingRule()
    for record in steps(values, each=1):
        rule.see(record)
        if rule.settled:
            return record.epoch + 1
    return None


def noise(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_there_is_no_answer_before_there_are_enough_points() -> None:
    assert end([1.0] * 31) is None
    assert end([1.0] * 32) == 32


def test_a_noisy_curve_that_is_flat_ends() -> None:
    ends = [end(noise(400, seed).tolist()) or math.inf for seed in range(40)]
    assert max(ends) <= 300
    assert min(ends) >= 150  # what so few points say of noise is chance


@pytest.mark.parametrize("size", [0.0, 0.01, 0.05])
def test_a_curve_that_falls_ends_near_its_limit(size: float) -> None:
    """exp(-t / 100) with noise of every epoch: of the whole fall of 1 at most a twentieth is left, and time is kept."""
    t = torch.arange(1500, dtype=torch.float64)
    for seed in range(20):
        found = end(((-t / 100).exp() + size * noise(1500, seed)).tolist())
        assert found is not None
        assert math.exp(-found / 100) <= 0.05
        assert found <= 1000


def test_a_line_that_falls_never_ends() -> None:
    assert end([1 - 1e-4 * i for i in range(3000)]) is None


def test_steps_are_averaged_over_their_epochs() -> None:
    """Beside the trends of the metrics, which average in their own way."""
    curve = (10 / (1 + torch.arange(400)) + 0.1 * noise(400, 0)).tolist()
    taken = steps(curve)
    shaken = [{**vars(record), "value": record.value + (-1, 0, 1)[record.step % 3]} for record in taken]
    rule = StoppingRule()
    for count, record in enumerate(shaken, 1):
        rule.see(Record(**record))
        if count % 3 == 0 and count // 3 in (32, 39, 60, 100, 200, 400):
            found = trends(shaken[:count])
            assert found is not None
            assert rule.settled == found.settled


def test_its_state_is_exact_anywhere_in_an_epoch() -> None:
    taken = steps(noise(60, 3).tolist(), each=5)
    for cut in (0, 1, 7, 160, 163, 295):
        whole, rest = StoppingRule(), StoppingRule()
        for record in taken[:cut]:
            whole.see(record)
        rest.load_state_dict(copy.deepcopy(whole.state_dict()))
        answers: tuple[list[bool], list[bool]] = ([], [])
        for record in taken[cut:]:
            for rule, said in zip((whole, rest), answers, strict=True):
                rule.see(record)
                said.append(rule.settled)
        assert answers[0] == answers[1]
        assert torch.equal(whole.state_dict()["epochs"], rest.state_dict()["epochs"])


def test_a_training_with_the_default_rate_ends_near_its_optimum() -> None:
    """Breast cancer, a linear model, E||d||^2 <= .05: the optimum is .1613; thirty epochs of Adam stop at .25."""
    data = load_breast_cancer()
    x = torch.tensor((data.data - data.data.mean(0)) / data.data.std(0), dtype=torch.float32)
    y = torch.tensor(data.target)
    torch.manual_seed(0)
    model = nn.Linear(30, 2)
    trained = rhobust.fit(model, (x, y), method="spgd", radius=0.05, epochs="auto")  # and no warning
    (exact,) = rhobust.certify(model, (x, y), radii=[0.05])
    assert exact.status == "proved"
    assert exact.bound <= 1.03 * 0.16127
    assert trained.history[-1].epoch >= 100


class Cut(Silent):
    """A power cut after a given number of steps."""

    def __init__(self, after: int) -> None:
        self.after = after

    def stepped(self, record: Record) -> None:
        if record.step + 1 == self.after:
            raise RuntimeError("power cut")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(tmp_path_factory.mktemp("whole") / "run", CONFIG)


@pytest.mark.parametrize(("log", "checkpoint"), [(1, None), (7, None), (1, 3), (50, 7)])
def test_a_run_that_is_resumed_ends_at_the_same_step_with_the_same_bits(
    whole: Run, tmp_path: Path, log: int, checkpoint: int | None
) -> None:
    last = whole.metrics()[-1]["step"]
    assert 2 * 32 < last + 1 <= 2 * 100  # there was a choice
    how = {"log_every": log} | ({} if checkpoint is None else {"checkpoint_every": checkpoint})
    path = tmp_path / "run"
    for after in (31, last - 5, last + 1):
        with pytest.raises(RuntimeError, match="power cut"):
            train_run(path, None if path.exists() else Config.resolve(SETTINGS, {"epochs": "auto"}, how), Cut(after))
    train_run(path)
    assert Run(path).metrics() == [record for record in whole.metrics() if record["step"] % log == 0]
    assert (path / "model.safetensors").read_bytes() == whole.model_path.read_bytes()


def test_a_run_that_was_over_when_the_power_was_cut_takes_no_further_step(whole: Run, tmp_path: Path) -> None:
    """Its last checkpoint was written, and its model was not."""
    path = tmp_path / "run"

    class CutAtTheEnd(Silent):
        def epoch_ended(self, number: int, model: nn.Module) -> None:
            if number == whole.metrics()[-1]["epoch"]:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train_run(path, CONFIG, CutAtTheEnd())
    train_run(path)
    assert Run(path).metrics() == whole.metrics()
    assert (path / "model.safetensors").read_bytes() == whole.model_path.read_bytes()


def test_a_training_that_never_settles_ends_at_the_limit_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stopping_rule, "MOST_EPOCHS", 40)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, 2)
    slow, y = torch.optim.SGD(model.parameters(), lr=1e-2), (x[:, 0] > 0).long()
    with pytest.warns(UserWarning, match="the limit") as said:
        trained = rhobust.fit(model, (x, y), method="spgda", radius=0.01, epochs="auto", optimizer=slow)
    assert len(trained.history) == 40
    (told,) = {str(one.message) for one in said}
    assert told == (
        "40 epochs, the limit of epochs 'auto', ended the training before its objective had settled. Raise the "
        "learning rate, or give the number of epochs"
    )

    class Heard(Observer):
        steps: int | None = -1
        messages: list[str] = []  # noqa: RUF012

        def started(self, steps: int | None, start: int, radius: float | None) -> None:
            self.steps = steps

        def warned(self, message: str) -> None:
            self.messages.append(message)

    heard = Heard()
    train_run(tmp_path / "run", Config.resolve(SETTINGS, {"epochs": "auto", "learning_rate": 1e-4}), heard)
    assert heard.steps is None  # a progress bar knows no end
    assert [message for message in heard.messages if "limit" in message] == [told]
    assert not [message for message in heard.messages if "still falls" in message]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples in an order of their own, of unknown number."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.x, self.y, strict=True))


def test_a_loader_of_unknown_length_ends_where_one_of_known_length_does() -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + 0.5 * x[:, 1].abs() > 0).long()
    found = []
    for samples in (Stream(x, y), TensorDataset(x, y)):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        fast = torch.optim.Adam(model.parameters(), lr=0.05)
        loader: Any = DataLoader(samples, batch_size=24)
        found.append(rhobust.fit(model, loader, radius=0.1, epochs="auto", optimizer=fast, ema=0.9).history)
    assert found[0] == found[1]
    assert 3 * 32 <= len(found[0]) < 3 * 1000


def test_memory_and_an_average_go_with_it() -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, 2)
    fast = torch.optim.Adam(model.parameters(), lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an average that would look back too far, nothing can be said
        trained = rhobust.fit(
            model, (x, (x[:, 0] > 0).long()), radius=0.1, epochs="auto", optimizer=fast, ema=0.9, memory=1.0
        )
    assert 32 <= len(trained.history) < 1000


@pytest.mark.parametrize("value", ["10x", 0, -3, True, 2.5, "", "AUTO", None, [1], "1_0"])
def test_what_is_neither_a_number_nor_auto_is_one_clear_error(value: Any) -> None:
    x, y = torch.zeros(8, 3), torch.arange(8) % 2
    with pytest.raises(ConfigError, match=r"epochs must be a whole number, at least 1, not .*; or 'auto'") as in_python:
        rhobust.fit(nn.Linear(3, 2), (x, y), radius=0.1, epochs=value)
    assert len(in_python.value.problems) == 1
    with pytest.raises(ConfigError, match=r"epochs must be (a whole number, or auto|> 0), not") as in_file:
        Config.resolve({"radius": 1, "epochs": value})
    assert len(in_file.value.problems) == 1


@pytest.mark.parametrize("word", ["--epochs=10x", "--epochs=0", "--epochs=-3", "--epochs=true", "--epochs=2.5"])
def test_the_command_takes_no_other_word_and_makes_no_run(word: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--radius=1", word, f"--out={tmp_path / 'run'}"])
    assert isinstance(result.exception, ConfigError)
    assert len(result.exception.problems) == 1
    assert not (tmp_path / "run").exists()


def test_only_a_constant_rate_goes_with_it() -> None:
    x, y = torch.zeros(8, 3), torch.arange(8) % 2
    said = "schedule 'cosine' needs the number of epochs, and 'auto' is none: set epochs to one, or drop schedule"
    with pytest.raises(ConfigError) as in_python:
        rhobust.fit(nn.Linear(3, 2), (x, y), radius=0.1, epochs="auto", schedule="cosine")
    with pytest.raises(ConfigError) as in_command:
        Config.resolve({"radius": 1, "epochs": "auto", "schedule": "cosine"})
    assert in_python.value.problems == in_command.value.problems == [said]


def test_a_federation_has_rounds() -> None:
    with pytest.raises(ConfigError, match="a federation trains in rounds, not in epochs: drop epochs, set rounds"):
        Config.resolve({"method": "drfl", "radius": 1, "epochs": "auto"})


@pytest.mark.parametrize(
    "words", [["--epochs", "auto"], ["epochs=auto"], ["--config", "auto.toml"]], ids=["option", "word", "file"]
)
def test_the_command_trains_until_it_has_settled(
    words: list[str], whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("auto.toml").write_text('epochs = "auto"\n')
    rest = [f"{key}={value}" for key, value in SETTINGS.items()]
    result = CliRunner().invoke(app, ["train", *words, "--out", "run", *rest])
    assert result.exit_code == 0, result.output
    assert "still falls" not in result.output
    assert Run(Path("run")).config().epochs == "auto"
    assert Run(Path("run")).model_path.read_bytes() == whole.model_path.read_bytes()


def test_a_number_of_epochs_is_an_option_as_before(tmp_path: Path) -> None:
    words = ["--epochs", "2", "--method=erm", "train_samples=100", "--model=linear"]
    result = CliRunner().invoke(app, ["train", *words, f"--out={tmp_path / 'run'}"])
    assert result.exit_code == 0, result.output
    assert Run(tmp_path / "run").config().epochs == 2
