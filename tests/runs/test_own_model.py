"""A model of the user's own in runs: trained, resumed, loaded, measured and told apart, always from the same source."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app
from rhobust.errors import ConfigError, RhobustError, RunError
from rhobust.report.gather import gather
from rhobust.report.recipes import training
from rhobust.report.tables import facts
from rhobust.runs.build import build_engine
from rhobust.runs.config import Config
from rhobust.runs.start import train_run
from rhobust.support.toml import parse_overrides
from rhobust.training.engine import Engine
from rhobust.training.observers import Observer

# As the library's mlp, but for a factor that is no part of the state.
NETS = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, *layers, noise):
        super().__init__(*layers)
        self.noise = noise
        self.register_buffer("factor", torch.ones(1), persistent=False)

    def forward(self, x):
        return super().forward(x * self.factor + self.noise)

def net(shape, outputs, width=128):
    layers = [nn.Flatten(), nn.Linear(shape.numel(), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return Net(*layers, nn.Linear(width, outputs), noise=0.0)

def noisy(shape, outputs):
    return Net(nn.Flatten(), nn.Linear(shape.numel(), outputs), noise=torch.rand(shape))
"""
SHORT = {"method": "spgda", "radius": 1.0, "epochs": 1, "train_samples": 256, "threads": 1, "device": "cpu"}


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, in the working directory."""
    (tmp_path / "code").mkdir()
    path = tmp_path / "code" / "nets.py"
    path.write_text(NETS)
    monkeypatch.chdir(path.parent)
    return path


def config_of(model: str = "nets.py:net", **more: Any) -> Config:
    return Config.resolve(SHORT, {"model": model}, more)


def assert_same_weights(first: Path, second: Path) -> None:
    weights = rhobust.load(second).model.state_dict()
    for name, weight in rhobust.load(first).model.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_the_settings_hold_the_file_its_digest_and_its_arguments(nets: Path, tmp_path: Path) -> None:
    words = parse_overrides(["model_args.width=64", "model_args.kernel={sizes = [3, 5]}"])
    config = config_of(**words)
    assert config.model == f"{nets}:net"
    assert config.model_digest == hashlib.sha256(NETS.encode()).hexdigest()
    assert config.model_args == {"width": 64, "kernel": {"sizes": [3, 5]}}
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert Config.from_toml(tmp_path / "config.toml", here=True) == config
    (tmp_path / "mine.toml").write_text('radius = 1\nmodel = "nets.py:net"\n[model_args]\nwidth = 32\ndepth = 2\n')
    assert Config.from_toml(tmp_path / "mine.toml", words).model_args == {"depth": 2, **config.model_args}


PLAIN = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.from_regex(r"[a-zé_]\w{0,5}", fullmatch=True).filter(str.isidentifier), PLAIN, max_size=3))
def test_arguments_are_written_down_and_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, args: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "args.toml"
    made = Config.resolve({"radius": 1, "model": "nets.py:net", "model_args": args}, here=False)
    path.write_bytes(made.to_toml().encode())
    read = Config.from_toml(path)
    assert read == made
    assert repr(read.model_args) == repr(made.model_args)  # 1 and 1.0 and True are equal


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model_args": {"width": 64}}, "model 'mlp' takes no model_args"),
        ({"model_digest": "0" * 64}, "model 'mlp' takes no model_digest"),
        ({"model_digest": "0"}, "model_digest must be a SHA-256, 64 digits of 0-9 and a-f, not '0'"),
        ({"model_args": 3}, "model_args must be a table, such as {width = 64}, not 3"),
        ({"model_args": {"a b": 3}}, "model_args has the key 'a b', which is no name of an argument"),
        ({"model_args": {"a": float("nan")}}, "model_args.a must be text, true or false"),
        ({"model_args": {"a": (1, 2)}}, "it is a tuple"),
        ({"model_args": {"a": torch.ones(1)}}, "it is a Tensor"),
        ({"model_args": {"a": 2**63}}, "a whole number of 64 bits"),
        ({"model_args": {"a": [[[[[[[[[1]]]]]]]]]}}, "8 deep at most"),
        ({"model_args": {"a": "\ud800"}}, "model_args.a must be text"),
        ({"model": "nets.py"}, "model 'nets.py' names no factory; write nets.py:FACTORY"),
        ({"model": "gone.py:net"}, "gone.py does not exist"),
        ({"model": "mpl"}, "did you mean 'mlp'?); known: linear, mlp"),
        ({"model": "mpl"}, "or a model of your own, FILE.py:FACTORY or PACKAGE.MODULE:FACTORY"),
    ],
)
def test_wrong_settings_are_listed_with_all_others(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.resolve({"radius": -1, "method": "spgda"}, given)
    assert any(said in problem for problem in caught.value.problems)
    assert "radius must be > 0, not -1.0" in caught.value.problems


def test_it_trains_like_the_same_model_of_the_library(nets: Path, tmp_path: Path) -> None:
    for name, more in (("central", {}), ("federated", {"method": "drfl", "rounds": 4, "workers": 3, "epochs": None})):
        given = {key: value for key, value in (SHORT | more).items() if value is not None}
        own = train_run(tmp_path / name, Config.resolve(given, {"model": "nets.py:net", "model_args": {"width": 128}}))
        named = train_run(tmp_path / f"{name}-mlp", Config.resolve(given, {"model": "mlp"}))
        assert_same_weights(own.path, named.path)
        assert own.metrics() == named.metrics()


def test_loading_makes_what_the_state_does_not_hold_and_leaves_the_generator(nets: Path, tmp_path: Path) -> None:
    engines = []

    def engine_of(*given: Any) -> Engine:
        engines.append(build_engine(*given))
        return engines[-1]

    run = train_run(tmp_path / "run", config_of("nets.py:noisy", seed=5), engine_of=engine_of)
    (model,) = (engine.objective.model for engine in engines)
    before = torch.get_rng_state()
    loaded = rhobust.load(run.path)
    assert torch.equal(torch.get_rng_state(), before)
    noise: Any = model.noise
    assert float(noise.std()) > 0.1
    x = torch.rand(7, 1, 8, 8) * 2 - 1
    assert torch.equal(loaded(x), model.eval()(x))
    assert not any(tensor.is_meta for tensor in (loaded.model.noise, *loaded.buffers()))


def test_a_run_is_resumed_to_the_same_bytes(nets: Path, tmp_path: Path) -> None:
    whole = train_run(tmp_path / "whole", config_of(epochs=2, checkpoint_every=1))

    class Stopped(Observer):
        def stepped(self, record: Any) -> None:
            if record.step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(tmp_path / "run", config_of(epochs=2, checkpoint_every=1), Stopped())
    changed = NETS + "# a word more\n"
    nets.write_text(changed)
    with pytest.raises(ConfigError, match=r"nets\.py has changed") as caught:
        train_run(tmp_path / "run")
    for digest in (NETS, changed):
        assert hashlib.sha256(digest.encode()).hexdigest() in str(caught.value)
    nets.write_text(NETS)
    resumed = train_run(tmp_path / "run")
    assert resumed.model_path.read_bytes() == whole.model_path.read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file and a run of it."""
    place = tmp_path_factory.mktemp("own")
    (place / "nets.py").write_text(NETS)
    train_run(place / "run", Config.resolve(SHORT, {"model": f"{place / 'nets.py'}:net"}))
    return place


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run whose file may be changed."""
    shutil.copytree(finished, tmp_path / "own")
    path = tmp_path / "own" / "run" / "config.toml"
    path.write_text(path.read_text().replace(str(finished), str(tmp_path / "own")))
    return path.parent


def test_a_source_that_changed_or_is_gone_is_not_run(run: Path) -> None:
    nets, digest = run.parent / "nets.py", hashlib.sha256(NETS.encode()).hexdigest()
    ran = run.parent / "ran"
    nets.write_text(f"open({str(ran)!r}, 'w')\n{NETS}")
    with pytest.raises(RunError, match=rf"nets\.py has changed.*and model_digest is {digest}\. Put the file back"):
        rhobust.load(run)
    for command in ("evaluate", "certify"):
        found = CliRunner().invoke(app, [command, str(run)])
        assert isinstance(found.exception, RunError)
    assert not ran.exists()
    nets.rename(run.parent / "moved.py")
    with pytest.raises(
        RunError, match=r"nets\.py does not exist.*If the file was moved, correct model in .*config\.toml"
    ):
        rhobust.load(run)
    (run.parent / "moved.py").write_text(NETS)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("nets.py", "moved.py"))
    assert rhobust.load(run).config.model.endswith("moved.py:net")
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "model_digest" not in line))
    with pytest.raises(RunError, match="no model_digest"):
        rhobust.load(run)


def test_weights_of_another_network_do_not_fit(run: Path) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace('nets.py:net"', 'nets.py:noisy"'))
    with pytest.raises(RunError, match=r"model\.safetensors does not fit the model '.*nets\.py:noisy'"):
        rhobust.load(run)


def test_settings_taken_back_hold_the_digest_unless_the_model_is_named_anew(run: Path) -> None:
    nets = run.parent / "nets.py"
    nets.write_text(NETS + "# a word more\n")
    words = ["train", "--config", str(run / "config.toml"), "--out", str(run.parent / "again")]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, ConfigError)
    assert "for a new run of the file as it is now, drop model_digest" in str(found.exception)
    assert not (run.parent / "again").exists()
    done = CliRunner().invoke(app, [*words, "--model", f"{nets}:net"], catch_exceptions=False)
    assert done.exit_code == 0
    assert rhobust.load(run.parent / "again").config.model_digest == hashlib.sha256(nets.read_bytes()).hexdigest()


def test_a_report_names_the_file_and_tells_its_versions_apart(run: Path) -> None:
    other = run.parent / "other"
    shutil.copytree(run, other)  # a run of another version: its digest is another
    (run.parent / "later").mkdir()
    later = run.parent / "later" / "nets.py"
    later.write_text(NETS + "# a word more\n")
    text = (other / "config.toml").read_text().replace(str(run.parent / "nets.py"), str(later))
    before, after = digests = [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (run.parent / "nets.py", later)
    ]
    (other / "config.toml").write_text(text.replace(before, after))
    for path in (run, other):
        words = ["evaluate", str(path), "--attacks", "fgsm", "--epsilons", "0.1", "--samples", "20"]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    report = gather([run, other], samples=5)
    assert [row.name for row in report.rows] == [
        f"spgda, model nets.py:net, model digest {digest[:12]}" for digest in digests
    ]
    alone = gather([run], samples=5)
    assert "model nets.py:net" in facts(alone)
    (entry,) = alone.entries
    assert f"model={run.parent / 'nets.py'}:net model_digest={digests[0]}" in training(entry)


@pytest.mark.parametrize("wrong", ["boom", "gone", "many"])
def test_a_model_that_cannot_be_built_leaves_nothing_behind(nets: Path, tmp_path: Path, wrong: str) -> None:
    nets.write_text(f"{NETS}\ndef boom(shape, outputs):\n    raise ValueError\n")
    before = sorted(tmp_path.rglob("*"))
    words = ["train", "--out", str(tmp_path / "run"), "radius=1", "--model", f"nets.py:{wrong}"]
    if wrong == "many":
        words = [*words[:-1], "nets.py:net", "model_args.depth=3"]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, RhobustError)
    assert sorted(tmp_path.rglob("*")) == before


def test_help_runs_no_code_of_the_user(nets: Path, tmp_path: Path) -> None:
    nets.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    done = CliRunner().invoke(app, ["train", "--model", "nets.py:net", "--help"], catch_exceptions=False)
    assert done.exit_code == 0
    assert not (tmp_path / "ran").exists()
