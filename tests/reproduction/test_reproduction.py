"""The reproduction: what is planned, what a job tells, what the files are read as."""

import copy
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Size, nn

from rhobust.data import digits
from rhobust.errors import RunError
from rhobust.reproduction import nvidia_mps
from rhobust.reproduction.claims import Verdict, claims
from rhobust.reproduction.curves import paper_lines, tuned_lines
from rhobust.reproduction.experiments import FIGURES, FULL, QUICK, Scale
from rhobust.reproduction.flops import Flops, flops_of
from rhobust.reproduction.job import dataset, do
from rhobust.reproduction.page import draw, filled
from rhobust.reproduction.plan import Job, choice, foreseen, known_jobs, plan
from rhobust.reproduction.store import Store, read_figure, session_summary
from rhobust.reproduction.tables import tables
from rhobust.support.counting import counted_passes

PAPER = Path(__file__).parents[2] / "results" / "paper"
Results = dict[str, dict[str, Any]]


MACHINE: dict[str, Any] = {"config": {"precision": "float32"}, "environment": {"device": "x"}}


def made_up(job: Job, validation: float = 0.5) -> dict[str, Any]:
    """A result as a job might have it."""
    if job.tunes:
        errors = {"pgd": {"0": validation, "0.1": validation}}
    elif "rounds" in job.training:
        errors = {panel: {"100": 0.5, "1000": 0.5} for panel in ("clean", "ifgsm", "pgd")}
    else:
        errors = {panel: {"0": 0.1, "0.1": 0.5} for panel in ("fgsm", "ifgsm", "pgd-paper", "pgd")}
    return {"asked": copy.deepcopy(job.asked), "errors": errors, "rho_eff": 1.0, **MACHINE}


def worked_through(figures: list[str], seeds: int, scale: Scale, best: dict[str, float], results: Results) -> list[str]:
    """Do what the plan says until it says nothing; the names in order. `best`: which value of a knob wins."""
    order = []
    while jobs := plan(figures, seeds, scale, results):
        job = jobs[0]
        wins = best.get(job.training["method"]) in job.training.values()
        results[job.name] = made_up(job, 0.1 if wins else 0.5)
        order.append(job.name)
    return order


def test_at_first_the_candidates_and_the_papers_own_runs_can_be_done() -> None:
    names = {job.name for job in plan(["figure5"], 2, FULL, {})}
    assert names == {
        *(f"figure5/tuning/drfl-loss/radius={radius}" for radius in (6, 12, 25, 50, 100)),
        *(f"figure5/paper/{method}/{seed}" for method in ("drfl-loss", "drfl-literal", "fedavg") for seed in (0, 1)),
    }
    central = {job.name for job in plan(["figure1"], 1, FULL, {})}
    assert len(central) == 8 + 2 * 4 + 6 + 5 + 2 * 6  # eight methods; epsilon twice, gamma, the radii of three methods
    assert not [name for name in central if "tuned" in name]


def test_the_settings_are_the_papers() -> None:
    jobs = {job.name: job for job in plan(["figure1", "figure3"], 1, FULL, {})}
    spgd = jobs["figure1/paper/spgd/0"].training
    assert (spgd["data"], spgd["radius"], spgd["epochs"], spgd["batch_size"]) == ("mnist", 25.0, 30, 128)
    assert jobs["figure1/paper/wrm/0"].training["gamma"] == 1.0
    assert jobs["figure1/paper/ifgsm/0"].training["epsilon"] == 0.1
    drfl = jobs["figure3/paper/drfl-loss/0"].training
    assert (drfl["data"], drfl["partition"], drfl["workers"], drfl["batch_size"]) == (
        *("fashion-mnist", "one-class"),
        *(10, 64),
    )


def test_a_choice_brings_the_runs_that_depend_on_it_and_nothing_is_done_twice() -> None:
    results: Results = {}
    order = worked_through(["figure1"], 2, FULL, {"spgd": 6.0, "ifgsm": 0.3, "wrm": 1.0}, results)
    assert len(order) == len(set(order))
    assert results["figure1/tuned/spgd/1"]["asked"]["training"]["radius"] == 6.0
    assert results["figure1/tuned/ifgsm/0"]["asked"]["training"]["epsilon"] == 0.3
    assert not [name for name in order if name.startswith("figure1/tuned/wrm")]  # the paper's gamma won: it is there
    chosen = choice("figure1", "wrm", FULL, results)
    assert chosen is not None
    assert chosen.as_paper
    assert chosen.at_edge
    six = choice("figure1", "spgd", FULL, results)
    assert six is not None
    assert not six.at_edge
    assert six.errors == {2.0: 0.5, 6.0: 0.1, 12.0: 0.5, 25.0: 0.5, 50.0: 0.5}
    assert results["figure1/tuned/spgda-margin/0"]["asked"]["training"]["radius"] == 0.25  # a tie: the first


def test_what_others_wait_for_comes_first_and_then_the_longest() -> None:
    jobs = plan(list(FIGURES), 1, FULL, {})
    tuning = [job.tunes for job in jobs]
    assert tuning == sorted(tuning, reverse=True)
    costs = [job.cost for job in jobs if not job.tunes]
    assert costs == sorted(costs, reverse=True)


def test_going_on_after_an_interruption_is_the_same_plan() -> None:
    whole: Results = {}
    best = {"spgd": 12.0, "drfl-loss": 6.0}
    worked_through(["figure2", "figure4"], 1, QUICK, best, whole)
    draws = random.Random(0)
    for _ in range(5):
        kept = {name: whole[name] for name in draws.sample(sorted(whole), draws.randrange(len(whole)))}
        before = set(kept)
        again = worked_through(["figure2", "figure4"], 1, QUICK, best, kept)
        assert kept == whole
        assert not before & set(again)


def test_a_changed_setting_is_done_again_and_only_that() -> None:
    results: Results = {}
    worked_through(["figure4"], 1, FULL, {"drfl-loss": 6.0}, results)
    results["figure4/paper/fedavg/0"]["asked"]["training"]["rounds"] = 999
    assert [job.name for job in plan(["figure4"], 1, FULL, results)] == ["figure4/paper/fedavg/0"]
    stale = copy.deepcopy(results)
    stale["figure4/tuning/drfl-loss/radius=6"]["asked"]["measuring"]["held_out"] = 1
    order = worked_through(["figure4"], 1, FULL, {"drfl-loss": 6.0}, stale)
    assert sorted(order) == ["figure4/paper/fedavg/0", "figure4/tuning/drfl-loss/radius=6"]  # the choice is what it was
    longer = {job.name for job in plan(["figure4"], 1, replace(FULL, rounds=2000), results)}
    runs = ("paper/drfl-loss", "paper/drfl-literal", "paper/fedavg", "tuned/drfl-loss")
    assert longer == {f"figure4/{run}/0" for run in runs}


def test_what_json_gives_back_is_still_done() -> None:
    results: Results = {}
    worked_through(["figure1"], 1, FULL, {}, results)
    assert plan(["figure1"], 1, FULL, json.loads(json.dumps(results))) == []


def test_the_work_foreseen_is_the_work_done_once_nothing_is_undecided() -> None:
    results: Results = {}
    before = foreseen(["figure1"], 1, FULL, results)
    best = {"spgd": 6.0, "spgda-loss": 6.0, "fgsm": 0.2, "ifgsm": 0.2, "wrm": 0.1}
    worked_through(["figure1"], 1, FULL, best, results)
    spent = sum(job.cost for job in known_jobs("figure1", 1, FULL, results))
    assert before == pytest.approx(spent)
    assert foreseen(["figure1"], 1, FULL, results) == 0


def test_a_candidate_sees_nothing_of_the_test_set() -> None:
    whole, split = digits(), dataset("digits", None, 100)
    assert (len(split.train), len(split.test)) == (len(whole.train) - 100, 100)
    together = torch.cat([split.train.x, split.test.x]).flatten(1)
    assert sorted(together.tolist()) == sorted(whole.train.x.flatten(1).tolist())
    assert dataset("digits", None, None).test.digest() == whole.test.digest()


def test_the_arithmetic_of_the_papers_network_is_what_its_layers_say() -> None:
    first, second = 2 * 14 * 14 * 64 * (8 * 8 * 1), 2 * 7 * 7 * 128 * (6 * 6 * 64)
    third, last = 2 * 7 * 7 * 128 * (5 * 5 * 128), 2 * (7 * 7 * 128) * 10
    forward = first + second + third + last
    found = flops_of("cnn", Size([1, 28, 28]), 10)
    assert found == Flops(forward, 2 * forward, 3 * forward - first)  # no gradient in the images for the weights' sake


def test_passes_are_counted_with_and_without_a_gradient() -> None:
    model, each = nn.Linear(4, 3), Flops(1.0, 10.0, 100.0)
    with counted_passes(model) as passes:
        model(torch.zeros(5, 4, requires_grad=True))
        model(torch.zeros(2, 4))
        with torch.no_grad():
            model(torch.zeros(3, 4, requires_grad=True))
    model(torch.zeros(7, 4))
    assert (passes.with_gradient, passes.plain, passes.forwarded) == (5, 5, 10)
    assert each.spent(passes) == 55.0


CENTRAL = Job(
    "figure1/paper/spgda-loss/0",
    {"data": "digits", "method": "spgda-loss", "radius": 2.0, "epochs": 2, "batch_size": 128}
    | {"log_every": 4, "threads": 1},
    {
        **{"kind": "errors", "samples": 60, "epsilons": [0.0, 0.1]},
        **{"strict_samples": 30, "strict_epsilons": [0.0, 0.1], "restarts": 2},
    },
)
FEDERATED = Job(
    "figure5/paper/fedavg/0",
    {
        **{"data": "digits", "method": "fedavg", "rounds": 4, "evaluate_every": 2, "workers": 3, "batch_size": 16},
        **{"partition": "iid", "threads": 1},
    },
    {"kind": "rounds"},
)
PASSING = ("training_seconds", "evaluation_seconds")


def test_a_job_tells_the_errors_its_cost_and_its_work_and_the_same_again() -> None:
    told, again = do(CENTRAL), do(CENTRAL)
    for passing in PASSING:
        assert told.pop(passing) > 0
        again.pop(passing)
    assert told == again
    assert told["asked"] == CENTRAL.asked
    assert set(told["errors"]) == {"fgsm", "ifgsm", "pgd-paper", "pgd"}
    assert told["errors"]["fgsm"]["0"] == told["errors"]["pgd-paper"]["0"] <= told["errors"]["ifgsm"]["0.1"]
    assert told["config"]["label_cost"] == "inf"
    json.dumps(told, allow_nan=False)
    each, seen = flops_of("mlp", Size([1, 8, 8]), 10), 2 * 1437
    assert told["steps"] == 2 * 12
    assert told["gradients_per_step"] == 1
    assert told["flops"] == seen * (each.theta + each.zeta)
    assert 60 * each.forward < told["evaluation_flops"] < 60 * (2 * 21 + 2 * 2 * 40 + 256) * each.zeta


def test_a_federated_job_tells_the_errors_by_round() -> None:
    told = do(FEDERATED)
    assert list(told["errors"]["ifgsm"]) == ["2", "4"]
    each = flops_of("mlp", Size([1, 8, 8]), 10)
    assert told["flops"] == 4 * 3 * 5 * 16 * each.theta  # rounds, workers, local steps, batch; no gradient in zeta


def test_a_candidate_is_judged_on_what_was_held_out() -> None:
    job = Job("x", {**CENTRAL.training}, {"kind": "validation", "held_out": 50, "epsilons": [0.0, 0.1]})
    told = do(job)
    assert set(told["errors"]) == {"pgd"}
    assert told["errors"]["pgd"]["0"] * 50 == pytest.approx(round(told["errors"]["pgd"]["0"] * 50))
    assert told["flops"] < do(CENTRAL)["flops"]  # fewer images to train on


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, Any]:
    """Figures 1 and 5 with errors that are known."""
    store = Store(tmp_path, FULL)
    results: Results = {}
    worked_through(["figure1", "figure5"], 2, FULL, {"spgd": 6.0, "drfl-loss": 25.0}, results)
    at = {"erm": 0.9, "fgsm": 0.5, "ifgsm": 0.4, "wrm": 0.6, "spgd": 0.3, "spgda-loss": 0.45}
    for name, result in results.items():
        figure, _, method, seed = name.split("/")
        if "tuning" in name:
            pass
        elif figure == "figure1":
            high = at.get(method, 0.8) + (0.02 if seed == "1" else 0)
            result["errors"] = {panel: {"0": 0.1, "0.1": high} for panel in ("fgsm", "ifgsm", "pgd-paper", "pgd")}
        elif method == "fedavg":
            falls = {"25": 0.9, "100": 0.5, "1000": 0.6}
            result["errors"] = {"clean": {"25": 0.5, "100": 0.3, "1000": 0.15}, "ifgsm": falls, "pgd": falls}
        else:
            falls = {"25": 0.9, "100": 0.5, "1000": 0.3}
            result["errors"] = {"clean": falls, "ifgsm": falls, "pgd": falls}
        store.add(name, result)
    return {name: read_figure(tmp_path, name, quick=False) for name in ("figure1", "figure5")}


def test_a_knob_that_is_the_papers_needs_no_run_of_its_own(contents: dict[str, Any]) -> None:
    tuned = {line.label: line for line in tuned_lines(contents["figure5"])}
    assert list(tuned) == ["drfl-loss, rho 25"]
    paper = {line.label: line for line in paper_lines(contents["figure5"])}
    assert tuned["drfl-loss, rho 25"].runs == paper["drfl-loss, rho 25"].runs
    assert [line.label for line in tuned_lines(contents["figure1"])] == [
        *("erm", "fgsm, epsilon 0.1", "ifgsm, epsilon 0.1", "wrm, gamma 1"),
        *("spgd, rho 6", "spgda-loss, rho 0.25", "spgda-margin, rho 0.25"),
    ]


def test_means_and_spreads_are_those_of_the_seeds(contents: dict[str, Any]) -> None:
    made = tables(contents)
    assert "| spgd | rho 25 | 1 | 10.0 ± 0.0 | 31.0 ± 1.0 |" in made["figure1-paper-ifgsm"]
    assert "| spgd | rho 6 | 1 | 10.0 ± 0.0 | 31.0 ± 1.0 |" in made["figure1-tuned-pgd"]
    assert "| no attack | fedavg |  | 50.0 ± 0.0 | 30.0 ± 0.0 | 15.0 ± 0.0 | 1 |" in made["figure5"]
    assert "2: 50.0, 6: 10.0, 12: 50.0, 25: 50.0, 50: 50.0 | 6 |" in made["figure1-choices"]
    assert "12: 50.0, 25: 10.0, 50: 50.0, 100: 50.0 | 25 |" in made["figure5-choices"]
    assert "0.25 (edge of the grid)" in made["figure1-choices"]


def test_verdicts_follow_from_the_numbers(contents: dict[str, Any]) -> None:
    found = {(claim.panel, claim.words.split(" has ")[0]): claim.verdicts for claim in claims(contents)}
    spgd = found["1b", "under IFGSM SPGD"]
    assert spgd["paper"] == spgd["tuned"] == Verdict(1, 1)  # 31 % is below everybody's
    assert spgd["literal"] == Verdict(0, 1)
    assert found["1c", "under PGD SPGDA"]["paper"] == Verdict(0, 1)  # IFGSM training is below
    assert found["1a", "under FGSM every robust training"]["literal"] == Verdict(1, 1)  # 82 % is below 92 %
    assert str(found["5b", "under IFGSM DRFL keeps improving"]["paper"]) == "yes, 50.0 to 30.0 %, rounds 100 to 1000"
    assert found["5b", "under IFGSM FedAvg does not improve"]["paper"].held == 1
    assert found["5c", "under PGD FedAvg gets worse"]["paper"].held == 1
    clean = {verdict.detail: verdict.held for key in found if key[0] == "5a" for verdict in found[key].values()}
    assert clean == {"30.0 %": 0, "15.0 %": 1}
    assert not [claim for claim in found if claim[0].startswith("3")]  # no figure 3, so nothing is said of it


@pytest.mark.parametrize(("better", "held"), [(0.1, 1), (0.005, 0), (-0.1, 0)])
def test_one_class_a_worker_is_held_against_a_fair_share(contents: dict[str, Any], better: float, held: int) -> None:
    other = json.loads(json.dumps(contents["figure5"]).replace("figure5", "figure3"))
    for run in other["runs"].values():
        run["errors"]["pgd"] = {place: error - better for place, error in run["errors"]["pgd"].items()}
    found = {claim.panel: claim.verdicts for claim in claims({"figure3": other, **contents})}
    assert {verdict.held for verdict in found["3c"].values()} == {held}
    assert {verdict.held for verdict in found["3b"].values()} == {0}


def test_a_verdict_in_words() -> None:
    assert [str(Verdict(held, 8)) for held in (0, 3, 8)] == ["**no**, 0 of 8", "in part, 3 of 8", "yes, 8 of 8"]


def test_a_page_gets_its_tables_and_keeps_its_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: one -->\nold\nold\n<!-- end -->\nafter\n")
    text = filled(page, {"one": "| new |"})
    assert text == "before\n<!-- table: one -->\n| new |\n<!-- end -->\nafter\n"
    page.write_text(text)
    assert filled(page, {"one": "| new |"}) == text
    with pytest.raises(RunError, match=r"does not have|do not have: one"):
        filled(page, {"other": ""})


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (None, r"page\.md cannot be read: No such file"),
        (b"\xff\xfe", r"page\.md cannot be read: it is not UTF-8 text"),
        (b"<!-- table: strange -->\n<!-- end -->\n", "asks for tables that the results do not have: strange"),
    ],
)
def test_a_page_that_cannot_be_filled_in_is_refused_before_anything_is_written(
    page: bytes | None, message: str, tmp_path: Path
) -> None:
    place = tmp_path / "page.md"
    if page is not None:
        place.write_bytes(page)
    before = list(tmp_path.iterdir())
    with pytest.raises(RunError, match=message):
        draw(PAPER, place)
    assert list(tmp_path.iterdir()) == before


def test_quick_results_get_on_no_page(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "docs" / "page.md"
    job = next(job for job in plan(["figure5"], 1, QUICK, {}) if "/paper/" in job.name)
    Store(results, QUICK).add(job.name, made_up(job))
    page.parent.mkdir()
    page.write_text("words")
    with pytest.raises(RunError, match="holds quick results, and they belong on no page"):
        draw(results, page)
    assert list(page.parent.iterdir()) == [page]


def test_quick_and_full_results_are_never_mixed(tmp_path: Path) -> None:
    (job, *_) = plan(["figure5"], 1, QUICK, {})
    Store(tmp_path, QUICK).add(job.name, made_up(job))
    assert list(Store(tmp_path, QUICK).results) == [job.name]
    with pytest.raises(RunError, match=r"figure5.json holds quick results.*choose another --out"):
        Store(tmp_path, FULL)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"settings": {"quick": false}, "runs": {"a": {}}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "figure2.json").write_text(content)
    with pytest.raises(RunError, match=r"figure2\.json"):
        Store(tmp_path, FULL)


def test_what_is_the_same_in_many_runs_is_written_once_and_read_back_in_each(tmp_path: Path) -> None:
    """Also where a second call, on another machine, goes on."""
    jobs = plan(["figure5"], 2, FULL, {})
    made = {job.name: made_up(job) | {"environment": {"device": "xy"[i % 2]}} for i, job in enumerate(jobs)}
    for name, result in made.items():
        Store(tmp_path, FULL).add(name, result)
    assert Store(tmp_path, FULL).results == made
    written = json.loads((tmp_path / "figure5.json").read_text())
    assert written["configs"] == [MACHINE["config"]]
    assert sorted(place["device"] for place in written["environments"]) == ["x", "y"]
    assert {run["config"] for run in written["runs"].values()} == {0}


def test_a_summary_adds_up() -> None:
    made = [{"flops": 3e12, "evaluation_flops": 1e12, "environment": {"device": "x"}}] * 2
    found = session_summary(made, 4.0, seeds=1)
    assert (found["jobs"], found["flops"], found["tflops_per_second"]) == (2, 8e12, 2.0)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for NVIDIA's program, which notes how it was called."""
    log, program = tmp_path / "log", tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@ $CUDA_MPS_PIPE_DIRECTORY" >> {log}\n[ "$1" = -d ] || cat >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return log


def test_a_card_is_shared_while_it_lasts(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_mps, "_PROBE", "pass")
    with nvidia_mps.shared_card(lambda line: None) as shared:
        assert shared
        pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(pipe).is_dir()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert not Path(pipe).exists()
    assert control.read_text().split() == ["-d", pipe, pipe, "quit"]


def test_a_service_that_does_not_serve_is_said_and_stopped(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_mps, "_PROBE", "raise SystemExit('no card')")
    said: list[str] = []
    with nvidia_mps.shared_card(said.append) as shared:
        assert not shared
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert said == ["nvidia-cuda-mps-control does not work here (no card): processes take turns"]
    assert control.read_text().split()[-1] == "quit"


def test_candidates_alone_are_nothing_to_draw(tmp_path: Path) -> None:
    """As an interrupt early on leaves them."""
    store = Store(tmp_path, FULL)
    results: Results = {}
    worked_through(["figure1", "figure5"], 1, FULL, {"spgd": 6.0, "drfl-loss": 25.0}, results)
    for name, result in results.items():
        if "/tuning/" in name:
            store.add(name, result)
    with pytest.raises(RunError, match="holds no results to draw; make them: rhobust reproduce all --out"):
        draw(tmp_path)
    assert not list(tmp_path.glob("*.svg"))
