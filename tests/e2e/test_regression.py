"""A regression from the command: trained, resumed, loaded, evaluated, certified, reported, in a federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app
from rhobust.errors import ConfigError, DataError, Refused, RhobustError
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.measurements import CERTIFICATES, EVALUATION, SHIFTS, kept
from rhobust.runs.start import train_run
from rhobust.training.observers import Silent

WEIGHT = np.array([1.0, -0.5, 0.25])


def command(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with numbers to predict, one a sample and two."""
    place, draws = tmp_path_factory.mktemp("regression"), np.random.default_rng(0)
    x = draws.uniform(-2, 2, (400, 3))
    y = x @ WEIGHT + 0.3 * draws.standard_normal(400)
    np.savez(place / "reg.npz", x=x, y=y)
    np.savez(place / "two.npz", x=x, y=np.stack([y, -y], 1))
    return place


def settings(place: Path, **more: Any) -> Config:
    given = {"data": str(place / "reg.npz"), "task": "regression", "model": "linear", "method": "spgd", "radius": 0.05}
    given |= {"epochs": 40, "learning_rate": 0.02, "device": "cpu", "threads": 1}
    return Config.resolve({key: value for key, value in (given | more).items() if value is not None})


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    return train_run(place / "run", settings(place), Silent()).path


def test_the_run_is_loaded_and_predicts(trained: Path) -> None:
    model = rhobust.load(trained)
    with torch.no_grad():
        found = model(torch.eye(3))
    assert found.shape == (3, 1)
    np.testing.assert_allclose(found[:, 0], WEIGHT, atol=0.25)  # the radius shrinks it
    assert Run(trained).config().make_loss() is rhobust.losses.squared_error


def test_the_summary_says_the_radius_in_deviations(trained: Path, place: Path) -> None:
    price = json.loads((trained / "data.json").read_text())["price_of_deviations"]
    x = np.load(place / "reg.npz")["x"]
    assert price == pytest.approx(x.var(0).sum(), rel=0.1)  # of the fifth that is held out, too
    said = command("train", "--resume", str(trained))
    assert f"of rho 0.05 ({(0.05 / price) ** 0.5:.2g} deviations a feature)" in said


def test_it_is_evaluated_and_kept(trained: Path) -> None:
    said = command("evaluate", str(trained), "--epsilons", "0,0.2", "--budgets", "0.05", "--shifts", "all")
    assert "clean RMSE" in said
    assert "passed checks: learned, grows, inside, many-steps, one-step, gradients" in said
    assert "RMSE on 80 shifted samples" in said
    made = kept(Run(trained), EVALUATION)
    assert made is not None
    assert isinstance(made.result, RegressionEvaluation)
    assert made.settings["attacks"] == ["apgd"]
    assert made.settings["restarts"] == 3
    assert made.result.error("apgd", 0.2) > made.result.clean
    shifted = kept(Run(trained), SHIFTS)
    assert shifted is not None
    assert shifted.result.task == "regression"
    assert shifted.result.clean == pytest.approx(made.result.clean, rel=1e-6)
    assert shifted.result.by_shift.keys() == {"gaussian-noise", "impulse-noise"}


def test_it_is_certified_by_a_proof(trained: Path) -> None:
    command("certify", str(trained), "--radii", "0.05,0.5")
    made = kept(Run(trained), CERTIFICATES)
    assert made is not None
    assert made.result.status == "proved"


@pytest.mark.parametrize("loss", ["absolute", "quantile:0.8", "huber:0.5"])
def test_other_losses_are_proved_in_the_box_of_the_data_too(place: Path, tmp_path: Path, loss: str) -> None:
    run = train_run(tmp_path / "run", settings(place, loss=loss, epochs=20), Silent())
    command("certify", str(run.path), "--radii", "0.1")
    made = kept(run, CERTIFICATES)
    assert made is not None
    assert made.result.status == "proved"
    assert made.result[0].attained <= made.result[0].bound


def test_runs_are_reported_by_their_rmse(trained: Path, place: Path, tmp_path: Path) -> None:
    plain = train_run(tmp_path / "erm", settings(place, method="erm", radius=None), Silent()).path
    for form in ("md", "html", "json"):
        command("report", str(trained), str(plain), "--samples", "60", "--out", str(tmp_path / f"page.{form}"))
    page = (tmp_path / "page.md").read_text()
    assert "RMSE in the unit of y:" in page
    assert "| clean | clean R^2 | APGD 0.1 |" in page
    assert "| rho per feature |" in page
    assert "lowest RMSE" in page
    assert "%" not in page.replace("95 %", "")
    html = (tmp_path / "page.html").read_text()
    assert "A regression reads no class, so no examples are shown." in html
    assert "error, %" not in html
    content = json.loads((tmp_path / "page.json").read_text())
    entry = content["rows"][0]["runs"][0]
    assert entry["evaluation"]["residuals"]["rmse"] > 0
    assert entry["radius_per_feature"] > 0


def test_one_page_has_one_task(trained: Path, tmp_path: Path) -> None:
    other = train_run(
        tmp_path / "digits", Config.resolve({"method": "erm", "epochs": 1, "train_samples": 64}), Silent()
    ).path
    with pytest.raises(ConfigError, match="report on one task"):
        command("report", str(trained), str(other), "--out", str(tmp_path / "page.md"))


def test_an_audit_is_for_classifiers(trained: Path) -> None:
    with pytest.raises(Refused, match="an audit counts the errors of a classifier"):
        command("audit", str(trained))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attacks", "cascade"], "cascade cannot attack a regression"),
        (["--shifts", "label-proportion"], "a regression has none"),
        (["--shifts", "blur"], "needs images"),
    ],
)
def test_what_needs_classes_is_refused(trained: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command("evaluate", str(trained), *words)


def test_a_stopped_training_goes_on_as_if_it_had_not(place: Path, tmp_path: Path) -> None:
    config = settings(place, epochs=6, checkpoint_every=5)
    whole = train_run(tmp_path / "whole", config, Silent())

    class Stops(Silent):
        def stepped(self, record: Any) -> None:
            if record.step == 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(tmp_path / "parts", config, Stops())
    parts = train_run(tmp_path / "parts", None, Silent())
    assert parts.metrics() == whole.metrics()


def test_a_federation_learns_it(place: Path, tmp_path: Path) -> None:
    said = command(
        *("federate", "--data", str(place / "reg.npz"), "--task", "regression", "--method", "drfl-loss"),
        *("--radius", "0.05", "--model", "linear", "--workers", "4", "--rounds", "120", "--evaluate-every", "60"),
        *("--learning-rate", "0.02", "--out", str(tmp_path / "run")),
    )
    assert "test RMSE: clean" in said
    errors = Run(tmp_path / "run").metrics()[-1]["errors"]
    assert errors["clean"] < errors["ifgsm"]
    made = command("evaluate", str(tmp_path / "run"), "--epsilons", "0.1")
    assert "failed check" not in made


def test_several_numbers_a_sample(place: Path, tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", settings(place, data=str(place / "two.npz")), Silent())
    assert rhobust.load(run.path)(torch.zeros(5, 3)).shape == (5, 2)
    assert "passed checks: learned" in command("evaluate", str(run.path), "--epsilons", "0,0.1")


def test_a_radius_per_feature_is_the_radius_that_costs_as_much(place: Path, tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", settings(place, radius=None, radius_per_feature=0.1, epochs=1), Silent())
    price = json.loads((run.path / "data.json").read_text())["price_of_deviations"]
    config = run.config()
    assert config.radius == pytest.approx(0.01 * price)
    assert config.radius_per_feature is None
    with pytest.raises(ConfigError, match="radius and radius_per_feature both say"):
        settings(place, radius_per_feature=0.1)
    with pytest.raises(ConfigError, match="method 'erm' takes no radius, and so no radius_per_feature"):
        settings(place, method="erm", radius=None, radius_per_feature=0.1)


@pytest.mark.parametrize(
    ("arrays", "kind", "message"),
    [
        ({"y": np.array(["a", "b"] * 3)}, DataError, "y must be numbers"),
        ({"y": np.array([1.0, np.nan] * 3)}, DataError, "y holds NaN"),
        ({"y": np.ones(6)}, DataError, "every y is 1.0; there is nothing to predict"),
        ({"x": np.ones((1, 2)), "y": np.ones(1)}, DataError, "holds 1 samples"),
        ({"x": np.array([[0.0, 1.0]] * 6), "radius_per_feature": 0.1}, DataError, "no feature that may move differs"),
        ({"method": "spgda"}, ConfigError, "for regression take 'spgda-loss' or 'spgd'"),
        ({"model": f"{__file__}:two_outputs"}, RhobustError, r"outputs must be floats of shape \(2, 1\)"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_there_is_a_run(
    tmp_path: Path, arrays: dict[str, Any], kind: type[Exception], message: str
) -> None:
    known = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6.0)}
    np.savez(tmp_path / "reg.npz", **(known | {key: value for key, value in arrays.items() if key in known}))
    more = {key: value for key, value in arrays.items() if key not in known}
    more |= {"radius": None} if "radius_per_feature" in more else {}
    with pytest.raises(kind, match=message):
        train_run(tmp_path / "run", settings(tmp_path, **more), Silent())
    assert not (tmp_path / "run").exists()


def two_outputs(shape: torch.Size, classes: int) -> torch.nn.Module:
    """A model that says two numbers where one was asked for."""
    return torch.nn.Linear(shape.numel(), 2)
