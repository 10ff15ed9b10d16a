"""The command, from the outside."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app, main
from rhobust.data import digits
from rhobust.data.table_settings import TableSettings
from rhobust.errors import ConfigError, RhobustError
from rhobust.evaluation.shifts import evaluate_shifts
from rhobust.federation.settings import Federation
from rhobust.method import FEDERATED
from rhobust.runs import measurements
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.support.setting import settings_of


def command(*words: str) -> str:
    """What the command prints on standard output; errors of ours come through as they are."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "a"
    words = ("--data", "digits", "--method", "spgda", "--radius", "2", "--epochs", "6", "--out", str(path))
    assert command("train", *words).startswith(f"{path}: 72 steps, loss ")
    return path


def test_a_run_directory_tells_everything(trained: Path) -> None:
    run = Run.find(trained)
    config = run.config()
    assert (config.method, config.radius, config.epochs, config.knobs["steps"]) == ("spgda", 2.0, 6, (1, 1, 1, 1, 3))
    records = run.metrics()
    assert [record["step"] for record in records] == list(range(6 * 12))
    assert {"step", "loss", "value", "gamma", "rho_eff", "stationarity"} <= set(records[0])
    for record in records[::10]:  # the value is psi: loss + gamma (rho - E c)
        psi = record["loss"] + record["gamma"] * (2.0 - record["rho_eff"])
        assert record["value"] == pytest.approx(psi, rel=1e-5)
    environment = json.loads((trained / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["device"]


@pytest.mark.parametrize("how", [["train", "--epochs", "8"], ["federate", "--workers", "3", "--rounds", "40"]])
def test_a_model_that_has_learned_nothing_is_warned_of_after_training_and_by_evaluate(
    tmp_path: Path, how: list[str]
) -> None:
    path = str(tmp_path / "run")
    words = ("--method", "nfgsm", "--out", path, "epsilon=1.5", "noise=1")
    trained = CliRunner().invoke(app, [*how, *words], catch_exceptions=False)
    assert trained.exit_code == 0
    assert "the model has learned nothing. The moves of its training may hide" in trained.stderr
    said = command("evaluate", path, "--attacks", "fgsm", "--epsilons", "0.1")
    assert "failed check (learned): the clean error, " in said
    assert "passed checks" not in said
    few = command("evaluate", path, "--attacks", "pgd", "--epsilons", "0.1", "--samples", "3")
    assert "not checked: 3 samples do not tell whether the model has learned anything" in few


def test_load_gives_the_trained_module_back(trained: Path) -> None:
    model = rhobust.load(trained)
    assert isinstance(model, torch.nn.Module)
    assert not any(module.training for module in model.modules())
    assert model.bounds == (-1.0, 1.0)
    data = digits()
    with torch.no_grad():
        loss = float(cross_entropy(model(data.test.x), data.test.y))
    assert loss < 0.7  # an untrained one has log 10 = 2.3
    assert model.gamma < 1.0  # learned: it started at 1


def test_fit_and_train_take_the_same_steps(trained: Path) -> None:
    """One call and the command are the same pieces: equal weights, bit for bit."""
    from rhobust.models.catalog import build_model

    data = digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model("mlp", data.train.x.shape[1:], 10)
        state = rhobust.fit(
            model, (data.train.x, data.train.y), method="spgda", radius=2.0, epochs=6, seed=0, bounds=data.bounds
        )
    loaded = rhobust.load(trained)
    for name, weight in state.model.state_dict().items():
        assert torch.equal(weight, loaded.model.state_dict()[name]), name
    assert state.gamma == loaded.gamma


def test_evaluate_prints_and_writes_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    printed = command(
        *("evaluate", str(trained), "--attacks", "fgsm,pgd", "--epsilons", "0,0.2"),
        *("--budgets", "0.5", "--restarts", "2", "--json", str(out)),
    )
    written = json.loads(out.read_text())
    assert written["samples"] == 360
    cells = {(cell["attack"], cell["epsilon"]): cell["error"] for cell in written["attacked"]}
    assert cells["fgsm", 0.0] == cells["pgd", 0.0] == written["clean"] <= cells["fgsm", 0.2]
    assert f"{100 * cells['pgd', 0.2]:.2f}" in printed
    assert f"{100 * cells['wasserstein', 0.5]:.2f}" in printed


def test_evaluate_puts_a_run_under_shift_beside_a_baseline(trained: Path, tmp_path: Path) -> None:
    base, out, drawn = tmp_path / "erm", tmp_path / "out.json", tmp_path / "shifts.svg"
    command("train", "--method", "erm", "--epochs", "4", "--out", str(base))
    printed = command(
        *("evaluate", str(trained), "--attacks", "", "--shifts", "all", "--baseline", str(base), "--samples", "200"),
        *("--json", str(out), "--figure", str(drawn)),
    )
    written = json.loads(out.read_text())
    assert list(written) == ["shifts", "baseline"]  # no attack was asked for
    assert written["shifts"] == json.loads((trained / "shifts.json").read_text())
    for kind, path in (("shifts", trained), ("baseline", base)):
        found, model = written[kind], rhobust.load(path)
        data = digits()
        direct = evaluate_shifts(model, data, data.test[:200])
        assert found["mean"] == direct.mean > found["clean"]
        assert f"{100 * found['mean']:.2f}" in printed
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if line.strip()}
    assert len(rows["rotation"]) == 1 + 5 + 2  # severities, mean, the baseline's mean
    picture = drawn.read_text()
    for name in ("spgda", "erm, baseline"):  # in the legend, and at every point
        assert f">{name}</text>" in picture
        assert picture.count(f"<title>{name}, ") == 9 + 1  # shifts, and their mean


def test_certify_prints_writes_and_draws_what_the_library_finds(tmp_path: Path) -> None:
    """A linear model, so that the bound is proved; its loss on the test set itself lies below every certificate."""
    run, out, drawn = tmp_path / "run", tmp_path / "c.json", tmp_path / "c.svg"
    command("train", "--model", "linear", "--radius", "1", "--epochs", "2", "--out", str(run))
    words = ("certify", str(run), "--radii", "0.1,1", "--samples", "100", "--json", str(out), "--figure", str(drawn))
    printed = command(*words)
    data, model = digits(), rhobust.load(run)
    with torch.no_grad():
        clean = float(cross_entropy(model(data.test.x[:100]), data.test.y[:100]))
    written = json.loads(out.read_text())
    low, high = written["certificates"]
    assert written["samples"] == 100
    assert (low["radius"], high["radius"]) == (0.1, 1.0)
    assert low["status"] == high["status"] == "proved"
    assert clean < low["attained"] <= low["bound"] < high["attained"] <= high["bound"]
    assert f"{high['bound']:.4g}" in printed
    picture = drawn.read_text()
    assert picture.startswith("<svg")
    assert f"<title>spgd, rho 1: proved {high['bound']:.3g}, attained {high['attained']:.3g}</title>" in picture
    assert ">bound, proved</text>" in picture


def test_a_run_is_certified_at_its_own_radius_too(tmp_path: Path) -> None:
    for radius, cost, expected in (
        ("0.3", "l2", [0.1, 0.3, 0.5, 1, 2, 6]),
        ("2", "l2", [0.1, 0.5, 1, 2, 6]),
        ("0.05", "linf", [0.01, 0.04, 0.05, 0.09, 0.16]),  # in squares of an epsilon
    ):
        run = tmp_path / radius
        words = ("--model", "linear", "--radius", radius, "--epochs", "1", f"cost={cost}", "--out", str(run))
        command("train", *words)
        command("certify", str(run), "--samples", "10")
        written = json.loads((run / "certificates.json").read_text())
        assert [one["radius"] for one in written["certificates"]] == written["settings"]["radii"] == expected


@pytest.mark.parametrize(
    ("name", "options", "usual"),
    [
        (
            "train",
            "data data-dir target test drop fixed clip-to-training task loss train-samples model method radius epochs "
            "batch-size learning-rate seed device",
            {},
        ),
        (
            "federate",
            "data data-dir target test drop fixed clip-to-training task loss train-samples model method radius workers "
            "partition rounds batch-size participation local-steps aggregator weights byzantine byzantine-attack "
            "evaluate-every learning-rate seed device",
            {"method": "drfl", "batch_size": "64"},
        ),
    ],
)
def test_the_help_of_a_setting_is_the_help_of_its_option(name: str, options: str, usual: dict[str, str]) -> None:
    done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300", "TERM": "dumb"}, catch_exceptions=False)
    known = {**settings_of(Config), **settings_of(Federation), **settings_of(TableSettings)}
    lines = [" ".join(line.strip("│ ").split()) for line in done.stdout.splitlines()]
    shown = [line.split()[0].removeprefix("--") for line in lines if line.startswith("--")]
    others = {"config", "out", "resume", "quiet", "help"}
    assert [option for option in shown if option not in others] == options.split()
    for option in options.split():
        one = known[option.replace("-", "_")]
        default = usual.get(one.key, one.default)
        text = f"{one.help} Default: {default}." if default else one.help
        (line,) = [line for line in lines if line.startswith(f"--{option} ")]
        assert line.endswith(f" {text}")


def test_words_win_over_options_and_options_over_files(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text("radius = 1\nepochs = 2\nseed = 3\n")
    words = ("--config", str(tmp_path / "file.toml"), "--epochs", "4", "--seed", "5", "--out", str(tmp_path / "run"))
    command("train", "--model", "linear", "--train-samples", "64", *words, "seed=6", "epochs=1")
    config = Run.find(tmp_path / "run").config()
    assert (config.radius, config.epochs, config.seed) == (1.0, 1, 6)


def test_a_config_file_with_overrides_makes_the_same_run_as_options(trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "settings.toml"
    source.write_text('data = "digits"\nmethod = "spgda"\nradius = 7.0\nepochs = 1\n')
    out = tmp_path / "run"
    command("train", "--config", str(source), "--epochs", "6", "--out", str(out), "radius=2")
    assert (out / "config.toml").read_bytes() == (trained / "config.toml").read_bytes()
    assert (out / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_resuming_a_finished_run_says_so_and_changes_nothing(trained: Path) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    said = command("train", "--resume", str(trained))
    assert said.startswith(f"{trained} was finished already, nothing was done: 72 steps, loss ")
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}


def test_methods_lists_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    printed = command("methods")
    for name in rhobust.methods():
        assert re.search(rf"\b{name}\b", printed)
    told = " ".join(line.split("│")[2].strip() for line in printed.splitlines() if "│" in line)
    assert "erm on every worker, averaged after 5 local steps" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--method", "spgd", "--radius", "1"], "--out DIRECTORY"),
        (["train", "--out", "{new}", "method=spgd"], "method 'spgd' needs a radius"),
        (["train", "--out", "{run}", "radius=1"], "already holds a run; nothing was changed"),
        (["train", "--out", "{run}/model.safetensors", "radius=1"], "is a file, and a run is a folder"),
        (["train", "--resume", "{run}", "radius=1"], "with the settings it was started with"),
        (["train", "--resume", "{new}"], "there is no "),
        (["report", "{run}", "--format", "json", "--out", "{run}/config.toml"], "is a file of a run; choose another"),
        (["radius", "--epsilon", "1", "--data", "digits", "--json", "{run}/model.safetensors"], "is a file of a run"),
        (["evaluate", "{run}", "--json", "{run}/certificates.json"], "is a file of a run; choose another name"),
        (
            ["train", "--out", "{new}", "radius=1", "gamma_rule=multiplicative:-0.05"],
            "must be finite and > 0, not -0.05",
        ),
        (
            ["train", "--out", "{new}", "radius=1", "learning_rate=inf"],
            "learning_rate must be > 0, and finite, not inf",
        ),
        (["train", "--out", "{new}", "method=erm", "gamma_min=5"], "method 'erm' has no gamma: drop gamma_min"),
        (["train", "--memory", "1", "--out", "{new}"], "--memory is not an option but a setting: write memory=VALUE"),
        (["train", "--resume", "{run}", "--qiet"], "unknown option '--qiet' (did you mean '--quiet'?)"),
        (["federate", "--trim=1", "--out", "{new}"], "unknown option '--trim'"),
        (["train", "--config", "{new}", "--out", "{new}"], "does not exist"),
        (["evaluate", "{new}"], "there is no "),
        (["evaluate", "{run}", "--attacks", "pdg"], "unknown attack in a ball 'pdg' (did you mean 'pgd'?)"),
        (["evaluate", "{run}", "--attacks", "wasserstein"], "the Wasserstein attack is asked for by its budgets"),
        (["evaluate", "{run}", "--epsilons", "0,x"], "--epsilons takes numbers"),
        (["evaluate", "{run}", "--epsilons=-0.1"], "epsilon must be finite and >= 0"),
        (["evaluate", "{run}", "--epsilons=0.1,inf"], "epsilon must be finite and >= 0"),
        (["evaluate", "{run}", "--seed", str(2**64)], "below 2^63"),
        (["evaluate", "{run}", "--attacks", ""], "nothing to evaluate"),
        (["evaluate", "{run}", "--budgets", "0"], "a budget must be finite and > 0, not 0"),
        (["evaluate", "{run}", "--seed=-1"], "seed must be a whole number >= 0"),
        (["evaluate", "{run}", "--shifts", "rotatoin"], "unknown shift 'rotatoin' (did you mean 'rotation'?)"),
        (["evaluate", "{run}", "--baseline", "{new}"], "say which, for example --shifts all"),
        (["audit", "{run}", "--epsilon", "0"], "epsilon must be finite and > 0, not 0"),
        (["certify", "{run}", "--radii=-1"], "a radius must be finite and >= 0, not -1"),
        (["certify", "{run}", "--radii", ""], "radii is empty"),
    ],
)
def test_bad_requests_get_one_clear_error(trained: Path, tmp_path: Path, words: list[str], message: str) -> None:
    filled = [word.format(run=trained, new=tmp_path / "new") for word in words]
    with pytest.raises(RhobustError, match=re.escape(message)):
        CliRunner().invoke(app, filled, catch_exceptions=False)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("more", [["--shifts", "typo"], ["--shifts", "all", "--baseline", "nowhere"]])
def test_what_was_measured_outlives_a_request_that_is_refused(trained: Path, more: list[str]) -> None:
    command("evaluate", str(trained), "--attacks", "fgsm", "--epsilons", "0.1", "--samples", "20")
    before = (trained / "evaluation.json").read_bytes()
    with pytest.raises(RhobustError):
        CliRunner().invoke(app, ["evaluate", str(trained), "--epsilons", "0.3", *more], catch_exceptions=False)
    assert (trained / "evaluation.json").read_bytes() == before


def test_numbers_that_cannot_be_kept_are_still_told(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(measurements, "write_json", full)
    out, words = tmp_path / "out.json", ["--attacks", "fgsm", "--epsilons", "0", "--samples", "20"]
    done = CliRunner().invoke(app, ["evaluate", str(trained), *words, "--json", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"warning: {trained / 'evaluation.json'} cannot be written: No space left on device" in done.stderr
    assert json.loads(out.read_text())["samples"] == 20


@pytest.fixture
def unmeasured(trained: Path, tmp_path: Path) -> Path:
    """The run without what other tests measured of it."""
    run = Path(shutil.copytree(trained, tmp_path / "unmeasured"))
    for kind in measurements.KINDS:
        (run / kind.file).unlink(missing_ok=True)
    return run


def evaluated(run: Path, epsilons: str, *words: str) -> str:
    asked = ["evaluate", str(run), "--attacks", "fgsm", "--samples", "20", "--epsilons", epsilons, *words]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0
    return " ".join(done.stderr.split())


def test_the_newest_answer_is_the_one_that_is_kept(unmeasured: Path) -> None:
    path = unmeasured / "evaluation.json"
    before = sorted(unmeasured.iterdir())
    path.write_text("{")  # damaged: it is measured again
    for epsilons, restarts in (("0.1,0.2", "1"), ("0.1", "3"), ("0.1", "1")):
        assert evaluated(unmeasured, epsilons, "--restarts", restarts) == ""
        asked = json.loads(path.read_text())["settings"]
        assert asked["epsilons"] == [float(epsilon) for epsilon in epsilons.split(",")]
        assert asked["restarts"] == int(restarts)
    assert sorted(unmeasured.iterdir()) == sorted([*before, path])


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_answer_that_cannot_be_written_leaves_the_one_before(
    unmeasured: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    evaluated(unmeasured, "0.1")
    before = (unmeasured / "evaluation.json").read_bytes()

    def fail(path: Path, content: object) -> None:
        raise problem

    monkeypatch.setattr(measurements, "write_json", fail)
    done = CliRunner().invoke(app, ["evaluate", str(unmeasured), "--samples", "30"])
    assert done.exit_code == (0 if isinstance(problem, OSError) else 130)
    assert (unmeasured / "evaluation.json").read_bytes() == before


def test_numbers_are_not_written_over_a_file_of_a_run(unmeasured: Path) -> None:
    settings = (unmeasured / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match="is a file of a run; choose another name"):
        evaluated(unmeasured, "0.1", "--json", str(unmeasured / "config.toml"))
    assert (unmeasured / "config.toml").read_bytes() == settings
    evaluated(unmeasured, "0.1", "--json", str(unmeasured / "mine.json"))
    assert (unmeasured / "mine.json").exists()


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_an_interrupt_says_that_nothing_else_is_lost(
    unmeasured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    evaluated(unmeasured, "0.1")
    before = (unmeasured / "evaluation.json").read_bytes()

    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measurements, "evaluate", interrupted)
    monkeypatch.setattr(measurements, "evaluate_shifts", interrupted)  # which a report lacks, and measures
    for old in unmeasured.glob("shifts*.json"):
        old.unlink()
    done = CliRunner().invoke(app, [command, str(unmeasured)])
    assert done.exit_code == 130
    assert "what was measured before still stands" in done.stderr
    assert (unmeasured / "evaluation.json").read_bytes() == before


def test_no_digit_is_cut_off_where_the_screen_is_narrow(trained: Path) -> None:
    attacks = "fgsm,ifgsm,pgd,pgd-margin,apgd,apgd-margin,pgd-paper,square"
    words = ["evaluate", str(trained), "--attacks", attacks, "--epsilons", "0,0.1", "--samples", "10"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "40"}, catch_exceptions=False)
    assert "…" not in done.stdout
    assert all(name in done.stdout for name in attacks.split(","))


def test_a_name_that_cannot_be_written_down_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    name = tmp_path / "\udcff.npz"
    np.savez(name, x=np.random.default_rng(0).random((10, 3)), y=np.arange(10) % 2)
    with pytest.raises(ConfigError, match="data is not text that could be written down"):
        CliRunner().invoke(
            app,
            ["train", "--method", "erm", "--data", str(name), "--out", str(tmp_path / "run")],
            catch_exceptions=False,
        )
    assert not (tmp_path / "run").exists()


def test_an_error_is_lines_on_standard_error_and_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rhobust", "train", "--out", "x", "method=spgx", "epochs=0"])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert stop.value.code == 1
    assert said.out == ""
    assert said.err.splitlines() == [
        "error: unknown method 'spgx' (did you mean 'spgd'?); known: " + ", ".join([*rhobust.methods(), *FEDERATED]),
        "error: epochs must be > 0, not 0",
    ]


def test_it_is_quiet_where_there_is_no_terminal(tmp_path: Path) -> None:
    words = ["train", "--radius", "1", "--epochs", "1", "--out", str(tmp_path / "run"), "--quiet"]
    done = subprocess.run([sys.executable, "-m", "rhobust", *words], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_a_run_that_diverges_stops_before_the_update_and_keeps_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(RhobustError, match="nothing was updated"):
        CliRunner().invoke(
            app,
            ["train", "--out", str(path), "radius=1", "epochs=4", "optimizer=sgd", "learning_rate=1e20"],
            catch_exceptions=False,
        )
    assert Run.find(path).metrics()
    with pytest.raises(RhobustError, match="is not finished"):
        rhobust.load(path)


def test_weak_attacks_are_not_vouched_for(trained: Path) -> None:
    said = command("evaluate", str(trained), "--attacks", "fgsm", "--samples", "20", "--epsilons", "0,0.1")
    assert "only weak attacks were run (fgsm): stronger ones, such as cascade, find more" in said
    assert "passed checks" not in said
