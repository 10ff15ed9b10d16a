"""Messages on the wire, the calls that a site answers, and when a site is called: without a federation."""

import hashlib
import itertools
import json
import math
import pickle
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgpack
import numpy as np
import pytest
import torch
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.collab.api.decorators import get_object_publish_interface
from nvflare.collab.api.exceptions import RunAborted
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.defs import SETUP_TASK_NAME, SYNC_TASK_NAME
from nvflare.fuel.utils import fobs

from rhobust.data.frame import Frame
from rhobust.data.table import Table
from rhobust.deployment import coordinator as coordinator_module
from rhobust.deployment import site as site_module
from rhobust.deployment.controller import PatientController
from rhobust.deployment.coordinator import STOPPED, Coordinator
from rhobust.deployment.kits import COORDINATOR, SITE, Kits, make_kits
from rhobust.deployment.processes import parties
from rhobust.deployment.remote_workers import RemoteWorkers, _upload
from rhobust.deployment.site import LocalData, OtherModel, Site, SiteWork
from rhobust.deployment.submission import job_of
from rhobust.deployment.wire import Message, from_task, from_upload, to_task, to_upload
from rhobust.errors import ConfigError, DataError, Halted, RunError
from rhobust.federation.messages import Task, Upload
from rhobust.runs.config import Config
from rhobust.runs.run_data import run_data

THETA = torch.tensor([0.1, -1e-45, 3e38, -0.0])
TASK = Task(7, THETA, 0.3)
UPLOAD = Upload(7, THETA.double() / 3, -1.5, 40, 0.25, 3)


def same(a: Task | Upload, b: Task | Upload) -> bool:
    """To the bit, and of the same precision."""
    plain = {key: value for key, value in vars(a).items() if key != "theta"}
    others = {key: value for key, value in vars(b).items() if key != "theta"}
    return plain == others and a.theta.dtype == b.theta.dtype and a.theta.numpy().tobytes() == b.theta.numpy().tobytes()


def test_a_task_and_an_upload_arrive_to_the_bit() -> None:
    assert same(to_task(from_task(TASK)), TASK)
    assert same(to_upload(from_upload(UPLOAD)), UPLOAD)


def test_messages_are_plain_values_and_need_no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **named: object) -> None:
        raise AssertionError("a pickle")

    for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for message, back in ((from_task(TASK), to_task), (from_upload(UPLOAD), to_upload)):
        packed = msgpack.packb(message, strict_types=True)  # fails on a value that is not plain
        assert msgpack.unpackb(packed) == message
        sent = fobs.dumps(message)  # the engine's own way
        assert same(back(fobs.loads(sent)), TASK if back is to_task else UPLOAD)
        assert len(sent) < len(packed) + 1000  # and nothing rides along


def test_a_pickle_in_place_of_numbers_is_not_opened() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("it was opened",))

    message = from_upload(UPLOAD)
    message["theta"] = {"type": "|O", "numbers": pickle.dumps(Bomb())}
    with pytest.raises(ValueError, match=r"type '\|O'"):
        to_upload(message)


def test_a_site_offers_two_functions_and_the_coordinator_none() -> None:
    assert sorted(get_object_publish_interface(Site()).to_dict()) == ["gradient", "prepare"]
    assert not get_object_publish_interface(Coordinator("run", "report", ["site-1"], 1.0)).to_dict()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"round": True}, "round of type bool"),
        ({"round": 7.0}, "round of type float"),
        ({"gamma": 1}, "gamma of type int"),
        ({"loss": None}, "loss of type NoneType"),
        ({"theta": b"1234"}, "theta of type bytes"),
        ({"theta": {"type": "<f4", "numbers": b"12345"}}, "ends within a number"),
        ({"theta": {"type": "<f4", "numbers": [1.0]}}, "numbers of type list"),
        ({"theta": {"type": "<f4"}}, "has the fields type"),
        ({"labels": [1, 2]}, "labels"),
    ],
)
def test_an_upload_of_any_other_form_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        to_upload(from_upload(UPLOAD) | change)


@pytest.mark.parametrize("answer", [None, [], "text", [from_upload(UPLOAD)] * 2, 3.0])
def test_what_is_no_upload_at_all_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="not a dict"):
        to_upload(answer)


class Wires:
    """A transport that records its calls, and fails for the sites in `down`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.down: dict[str, str] = {}
        self.calls: list[tuple[str, list[str], float]] = []

    def __call__(
        self, names: Sequence[str], function: str, argument: Message, seconds: float
    ) -> tuple[Mapping[str, object], Mapping[str, str]]:
        self.calls.append((function, list(names), seconds))
        answer = from_upload(UPLOAD) if function == "gradient" else {"samples": 3}
        values = {name: answer for name in names if name not in self.down}
        return values, {name: self.down[name] for name in names if name in self.down}

    def sites(self, present: Sequence[str] = ("a", "b", "c")) -> RemoteWorkers:
        found = RemoteWorkers(["a", "b", "c"], present, {"config": ""}, 30.0, self, lambda: self.now)
        self.calls.clear()
        return found


def test_a_site_that_misses_a_deadline_is_not_waited_for_and_is_called_again_after_ever_longer_pauses() -> None:
    wires = Wires()
    sites = wires.sites()
    wires.down["b"] = "no answer within 30 s"
    answers = sites.ask(TASK, ["a", "b", "c"])
    assert answers["b"] == "no answer within 30 s"
    assert isinstance(answers["a"], Upload)
    tried = []
    for second in range(1, 200):
        wires.now = float(second)
        wires.calls.clear()
        assert isinstance(sites.ask(TASK, ["a", "b", "c"])["b"], str)
        assert [names for function, names, _ in wires.calls if function == "gradient"] == [["a", "c"]]
        retries = [(names, seconds) for function, names, seconds in wires.calls if function == "prepare"]
        assert retries in ([], [(["b"], 1.0)])
        tried += [second] if retries else []
    assert tried == [10, 30, 70, 150]
    wires.down.clear()
    wires.now = 1000.0
    assert isinstance(sites.ask(TASK, ["a", "b", "c"])["b"], Upload)


def test_a_site_that_prepares_and_then_misses_every_deadline_is_asked_ever_less_often() -> None:
    wires = Wires()
    sites, waited = wires.sites(), []

    def late(names: Sequence[str], function: str, argument: Message, seconds: float) -> Any:
        wires.down = {"b": "no answer"} if function == "gradient" else {}
        return wires(names, function, argument, seconds)

    sites._call = late
    for second in range(200):
        wires.now = float(second)
        sites.ask(TASK, ["a", "b", "c"])
        waited += [second for function, names, _ in wires.calls if function == "gradient" and "b" in names]
        wires.calls.clear()
    assert waited == [0, 10, 30, 70, 150]


@pytest.mark.parametrize("message", [{"x" * 10_000: 1}, {"\x1b[2J": 1}, {"problem": "\x1b[2J" + "y" * 999}])
def test_what_a_site_says_cannot_flood_a_log_or_steer_a_terminal(message: Message) -> None:
    found = _upload(message)
    assert isinstance(found, str)
    assert len(found) < 900
    assert found.isprintable()


def test_a_site_that_is_not_connected_is_never_called() -> None:
    wires = Wires()
    sites = wires.sites(present=["a", "c"])
    wires.now = 1e9
    assert sites.ask(TASK, ["a", "b"])["b"] == "is not connected"
    assert wires.calls == [("gradient", ["a"], 30.0)]
    assert sites.ask(TASK, ["b"]) == {"b": "is not connected"}
    assert len(wires.calls) == 1


def called_by(monkeypatch: pytest.MonkeyPatch, caller: str) -> None:
    monkeypatch.setattr(site_module, "collab", SimpleNamespace(caller=caller, site_name="site-1"))


def test_a_site_answers_the_coordinator_and_no_other_site(monkeypatch: pytest.MonkeyPatch) -> None:
    # A party that chooses theta and the size of a batch can reconstruct single samples from the answer.
    site, done = Site(), list[str]()

    def work() -> dict[str, Any]:
        done.append("work")
        return {}

    called_by(monkeypatch, "site-2")
    for ask in (lambda: site.gradient(from_task(TASK)), lambda: site.prepare({"config": ""})):
        assert ask() == {"problem": "Stranger"}
    assert site._answered(work) == {"problem": "Stranger"}
    assert (site._site_work, done) == (None, [])
    called_by(monkeypatch, "server")
    assert site.gradient(from_task(TASK)) == {"problem": "RhobustError"}  # it was heard: there are no settings yet


@pytest.mark.parametrize("looks", [0, 3, 10**9])
def test_a_site_that_is_being_shut_down_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looks: int
) -> None:
    """The server sees an abort after `looks` looks; the message of a failing site proves nothing."""

    class Answers(dict[str, object]):
        failures: ClassVar = {"b": RuntimeError("\x1b[2J runtime is shutting down")}

    class Engine:
        looked = 0

        @property
        def is_aborted(self) -> bool:
            self.looked += 1
            return self.looked > looks

        def get_clients(self, names: list[str]) -> Any:
            return lambda timeout: SimpleNamespace(gradient=lambda argument: Answers(a=1))

    monkeypatch.setattr(coordinator_module, "collab", Engine())
    report = tmp_path / "report.json"
    coordinator = Coordinator("run", str(report), ["a", "b"], 1.0)
    if looks < 10:
        with pytest.raises(Halted):  # the loop keeps a checkpoint, and hands it on
            coordinator._call(["a", "b"], "gradient", {}, 1.0)

        def train_run(*settings: object, **more: object) -> object:
            return coordinator._call(["a", "b"], "gradient", {}, 1.0)

        monkeypatch.setattr(coordinator_module, "train_run", train_run)
        with pytest.raises(RunAborted):
            coordinator.run()
        assert json.loads(report.read_text()) == {"outcome": STOPPED}
        return
    values, failures = coordinator._call(["a", "b"], "gradient", {}, 1.0)
    assert values == {"a": 1}
    assert failures == {"b": r"cannot be reached: \x1b[2J runtime is shutting down"}  # nothing that steers a terminal


def test_a_training_begins_without_sites_that_fail_either_of_its_first_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, coordinator, wanted = PatientController(server_obj_id="c"), SimpleNamespace(missing=[]), []
    controller.client_info = dict.fromkeys(["a", "b", "c"])
    controller.client_setup_status = dict.fromkeys(["a", "b", "c"], False)

    def answered(self: PatientController, task: Any, fl_ctx: object, min_responses: int) -> None:
        wanted.append(min_responses)
        if task.name == SYNC_TASK_NAME:  # c does not come up
            self.client_info |= {"a": SimpleNamespace(), "b": SimpleNamespace()}
        else:  # and b dies in between
            self.client_setup_status["a"] = True

    monkeypatch.setattr(CollabController, "broadcast_and_wait", answered)
    monkeypatch.setattr(controller, "log_warning", lambda *words: None)
    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(get_component=lambda name: coordinator))
    for name, missing in ((SYNC_TASK_NAME, ["c"]), (SETUP_TASK_NAME, ["c", "b"])):
        controller.broadcast_and_wait(task=SimpleNamespace(name=name), fl_ctx=context, min_responses=3)
        assert coordinator.missing == missing
    assert wanted == [3, 2]  # answers, of the sites that may still give one
    assert all(controller.client_info.values())  # what the engine checks before it ends the job
    assert all(controller.client_setup_status.values())


def test_of_a_failure_only_its_kind_leaves_a_site_and_it_does_one_thing_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called_by(monkeypatch, "server")
    site = Site()

    def fail() -> Message:
        raise DataError("/patients/names.npz holds NaN")

    assert site._answered(fail) == {"problem": "DataError"}
    begun, end = threading.Event(), threading.Event()

    def slow() -> Message:
        begun.set()
        end.wait(10)
        return {}

    thread = threading.Thread(target=site._answered, args=(slow,))
    thread.start()
    begun.wait(10)
    assert site._answered(dict) == {"problem": "Busy"}
    end.set()
    thread.join()
    assert site._answered(dict) == {}


def test_shares_of_one_data_set_are_disjoint_and_all_of_it() -> None:
    parts = [list(range(100))[LocalData("digits", share=f"{k}/3").part(100)] for k in (1, 2, 3)]
    assert sorted(itertools.chain(*parts)) == list(range(100))
    assert list(range(100))[LocalData("digits").part(100)] == list(range(100))


def test_a_path_in_a_site_file_is_seen_from_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('data = "mnist"\ndata_dir = "here"')
    assert LocalData.read(tmp_path / "site.toml").data_dir == str(tmp_path / "here")
    for data, path in (("digits", "digits"), ("own.npz", str(tmp_path / "own.npz")), ("/own.npz", "/own.npz")):
        (tmp_path / "site.toml").write_text(f'data = "{data}"')
        assert LocalData.read(tmp_path / "site.toml") == LocalData(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('data = "digits"\nshare = "4/3"', "share must read k/n"),
        ('data = "digits"\nshare = "one"', "share must read k/n"),
        ('date = "digits"', "did you mean 'data'"),
        ("data = 3", "data must be text"),
        ('data = "digits"\nmodel = "nets.py"', "names no factory; write nets.py:FACTORY"),
        ("", "data is missing"),
    ],
)
def test_a_wrong_site_file_is_one_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        LocalData.read(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"shape": [1, 9, 9]}, "the model takes"), ({"classes": 3}, "3 classes"), ({"bounds": [0.0, 1.0]}, "beyond")],
)
def test_data_that_do_not_fit_the_model_are_refused_by_the_site(
    tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    draws = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=draws.uniform(-1, 1, (20, 1, 4, 4)).astype(np.float32), y=np.arange(20) % 5)
    config = Config.resolve({"method": "drfl", "radius": 1.0, "workers": 2, "threads": torch.get_num_threads()})
    settings = {
        "config": config.to_toml(),
        "shape": [1, 4, 4],
        "classes": 5,
        "bounds": [-1.0, 1.0],
        "workers": ["a", "b"],
    }
    local = LocalData(str(tmp_path / "own.npz"), share="1/2")
    post = SiteWork.built(settings, local, "b")
    assert post.number == 1
    assert len(post.samples) == math.ceil(16 / 2)
    with pytest.raises(DataError, match=said):
        SiteWork.built(settings | wrong, local, "b")
    with pytest.raises(DataError, match="no samples here"):
        SiteWork.built(settings, LocalData(local.data, share="99/99"), "b")


def test_sites_prepare_their_rows_as_the_coordinator_does(tmp_path: Path) -> None:
    """One has a category that the coordinator does not know, the other a wider range and columns in another order."""
    hub, site = tmp_path / "hub.csv", tmp_path / "site.csv"
    hub.write_text("age,town,y\n" + "".join(f"{row},{'Ulm' if row % 3 else 'Bonn'},{row % 2}\n" for row in range(40)))
    site.write_text(
        "y,town,age\n" + "".join(f"{row % 2},{'Kiel' if row % 3 else 'Bonn'},{row - 9}\n" for row in range(60))
    )
    asked = {"data": str(hub), "target": "y", "method": "drfl", "radius": 1.0, "workers": 1, "threads": 1}
    config = Config.resolve(asked, {"clip_to_training": True})
    data = run_data(config)
    assert data.preprocessing is not None
    table = Table.from_json(data.preprocessing)
    settings: Message = {
        **{"config": config.to_toml(), "shape": list(data.train.x.shape[1:]), "classes": 2, "workers": ["a"]},
        "preprocessing": json.dumps(data.preprocessing),
    }
    work = SiteWork.built(settings, LocalData(str(site)), "a")
    assert len(work.samples) == 48
    raw = Frame.read(site, table.text)
    rows = {tuple(row) for row in table.inputs(raw, lambda _: None).tolist()}
    assert {tuple(row) for row in work.samples.x.tolist()} <= rows
    lower, upper = table.range
    assert bool(((lower <= work.samples.x) & (work.samples.x <= upper)).all())
    unclipped = Config.resolve(asked)
    with pytest.raises(ConfigError, match="sites train on a table with clip_to_training=true only"):
        Coordinator("", "", [], 1.0)._engine(unclipped, run_data(unclipped), torch.device("cpu"))
    with pytest.raises(ConfigError, match="is no table"):
        SiteWork.built(settings, LocalData("digits"), "a")


def test_a_site_has_numbers_where_the_task_is_a_regression(tmp_path: Path) -> None:
    local = LocalData(str(tmp_path / "own.npz"))
    np.savez(local.data, x=np.linspace(-1, 1, 24).reshape(6, 4), y=np.arange(6) - 2.5)
    asked = {"method": "drfl-loss", "radius": 1, "task": "regression", "model": "linear", "data": local.data}
    common = {"shape": [4], "classes": 0, "bounds": [-1.0, 1.0], "workers": ["a"]}
    work = SiteWork.built({"config": Config.resolve(asked).to_toml(), **common}, local, "a")
    assert work.worker.objective.model(work.samples.x).shape == (len(work.samples), 1)
    classes = Config.resolve(asked | {"method": "drfl", "task": "classification"}).to_toml()
    with pytest.raises(DataError, match="y must be whole numbers"):
        SiteWork.built({"config": classes, **common}, local, "a")


NETS = """
from torch import nn

def net(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), outputs))

def other(shape, outputs):
    return net(shape, outputs)
"""


def test_a_site_runs_its_own_copy_of_a_model_and_no_other(tmp_path: Path) -> None:
    for folder in ("hub", "site"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nets.py").write_text(NETS)
    given = {"method": "drfl", "radius": 1.0, "workers": 1, "threads": torch.get_num_threads()}
    config = Config.resolve(given, {"model": f"{tmp_path / 'hub' / 'nets.py'}:net"})
    (tmp_path / "hub" / "nets.py").unlink()  # it is on another machine
    settings: Message = {"config": config.to_toml(), "shape": [1, 8, 8], "classes": 10, "bounds": [-1.0, 1.0]}

    def work(text: str) -> SiteWork:
        (tmp_path / "site" / "site.toml").write_text(f'data = "digits"\n{text}')
        local = LocalData.read(tmp_path / "site" / "site.toml")
        return SiteWork.built(settings | {"workers": ["a"]}, local, "a")

    model = work('model = "nets.py:net"').worker.objective.model
    assert [tuple(weight.shape) for weight in model.parameters()] == [(10, 64), (10,)]

    ran = tmp_path / "ran"
    (tmp_path / "site" / "changed.py").write_text(f"open({str(ran)!r}, 'w')\n{NETS}")
    digest = hashlib.sha256((tmp_path / "site" / "changed.py").read_bytes()).hexdigest()
    for text, said in (
        ("", "its site.toml names no model; install"),
        ('model = "nets.py:other"', f"its model is other with the SHA-256 {config.model_digest}; install"),
        ('model = "changed.py:net"', f"its model is net with the SHA-256 {digest}; install"),
        ('model = "gone.py:net"', "its model is net with the SHA-256 none, as its file is not there; install"),
        ('model = "no_such_package:net"', "its model is net with the SHA-256 none, as its file is not there; install"),
    ):
        with pytest.raises(OtherModel) as caught:
            work(text)
        assert str(caught.value).startswith(said)
        assert f"nets.py:net with the SHA-256 {config.model_digest} there" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)  # it leaves the site
    assert not ran.exists()
    settings["config"] = "".join(line for line in config.to_toml().splitlines(True) if "model_digest" not in line)
    with pytest.raises(OtherModel):
        work('model = "nets.py:net"')


def test_that_a_site_has_another_model_is_all_that_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    called_by(monkeypatch, "server")

    def fail() -> Message:
        raise OtherModel("its model is another" + "!" * 1000)

    answer = Site()._answered(fail)
    assert answer == {"problem": "its model is another" + "!" * 1000}
    assert str(_upload(answer)) == f"failed: {answer['problem'][:300]} (its own log says more)"


def test_data_on_the_edge_of_bounds_that_float32_has_not_are_within_them(tmp_path: Path) -> None:
    x = np.full((20, 1, 4, 4), -0.1, dtype=np.float32)
    x[0] = 0.1
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 5)
    config = Config.resolve({"method": "drfl", "radius": 1.0, "workers": 2, "threads": torch.get_num_threads()})
    settings = {"config": config.to_toml(), "shape": [1, 4, 4], "classes": 5, "bounds": [-0.1, 0.1], "workers": ["a"]}
    assert SiteWork.built(settings, LocalData(str(tmp_path / "own.npz")), "a").number == 0


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("kits") / "fed", 11, "localhost", 8002)


def test_kits_let_a_job_name_our_classes_only_and_no_party_send_code(kits: Kits, tmp_path: Path) -> None:
    assert kits.sites[0] == "site-01"
    assert list(kits.sites) == sorted(kits.sites)  # the server sorts by name, and a site's number is its place
    assert Kits.find(kits.path) == kits
    listed: set[str] = set()
    for name in ("server", *kits.sites):
        local = kits.path / name / "local"
        rules = json.loads((local / "resources.json").read_text())
        assert rules["class_list_enforcement_mode"] == "enforce"
        assert len(rules["class_allow_list"]) == 2
        listed |= set(rules["class_allow_list"])
        rights = json.loads((local / "authorization.json").read_text())["permissions"]
        assert list(rights) == ["lead"]
        assert {rights["lead"][right] for right in ("byoc", "shell_commands", "download_job")} == {"none"}
        assert "/tmp/nvflare" not in (local / "resources.json").read_text()
    assert {COORDINATOR, SITE} < listed
    job_of(Coordinator("run", "report", list(kits.sites), 1.0), {"site-01": Site()}).export_job(str(tmp_path))
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json"}  # a job carries settings, never code
    text = "".join(file.read_text() for file in files)
    assert {part for part in text.split('"') if part.count(".") > 2} == listed


@pytest.mark.parametrize("party", ["server", "site-01"])
def test_the_engine_refuses_a_job_that_names_any_other_class(kits: Kits, party: str) -> None:
    guard, workspace = ComponentPathAuthorizer(), Workspace(str(kits.path / party))
    own = COORDINATOR if party == "server" else SITE
    guard.authorize_component_config({"path": own}, workspace=workspace)
    for path in (
        "nvflare.app_common.np.np_trainer.NPTrainer",
        "rhobust.commands.app.main",
        "subprocess.Popen",
        f"{own}s",
    ):
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            guard.authorize_component_config({"path": path}, workspace=workspace)


def test_keys_are_for_their_owner_alone_and_stay_in_their_kits(kits: Kits) -> None:
    assert (kits.path / "authority").stat().st_mode & 0o077 == 0
    for name in kits.sites:
        names = {file.name for file in (kits.path / name / "startup").iterdir()}
        assert "client.key" in names
        assert "rootCA.key" not in names
    kept = [path for path in (kits.path / "authority").rglob("*") if path.is_file()]
    for site in kits.sites:  # whose private key is nowhere but in its kit
        secret = next((kits.path / site).rglob("client.key")).read_text().strip()
        assert not [path for path in kept if json.dumps(secret)[1:-1] in path.read_text()]
    assert "PRIVATE KEY" in "".join(path.read_text() for path in kept)  # the authority's own
    assert kept
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)  # also in a copy of the folder


def test_a_directory_that_holds_something_is_left_alone(kits: Kits) -> None:
    with pytest.raises(RunError, match="not empty; nothing was changed"):
        make_kits(kits.path, 2, "localhost", 8002)
    with pytest.raises(ConfigError, match="at least one site") as problem:
        make_kits(kits.path / "new", 0, "a b", 70_000)
    assert len(problem.value.problems) == 3


def test_an_interrupted_provision_leaves_nothing_and_its_keys_were_never_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []

    def interrupted(work: Path) -> None:
        modes.append(work.stat().st_mode & 0o077)
        raise KeyboardInterrupt

    monkeypatch.setattr("rhobust.deployment.kits._forget_keys", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_kits(tmp_path / "fed", 1, "localhost", 8002)
    assert modes == [0]
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize("host", ["foo_bar", "ü", "..", "-x", "a b", "site-1", "admin", ""])
def test_a_server_needs_a_name_that_a_network_has(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of a machine|is the name of another party"):
        make_kits(tmp_path / "fed", 2, host, 8002)
    assert not (tmp_path / "fed").exists()


def test_a_party_that_is_not_here_is_named_with_those_that_are(kits: Kits) -> None:
    with pytest.raises(ConfigError, match=r"unknown party in .* 'site-99' .*; known: server, site-01, site-02"):
        parties(kits.path, "site-99")
    assert [party.name for party in parties(kits.path, "site-02")] == ["site-02"]


def test_the_coordinator_s_log_has_every_warning(caplog: pytest.LogCaptureFixture) -> None:
    message = "round 3: 1 of 2 workers sent a valid upload, 2 are needed (site-2: no answer); asking site-3 instead"
    coordinator_module._Log().warned(message)
    assert [record.getMessage() for record in caplog.records] == [message]
