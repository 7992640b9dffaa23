"""Trackers: a contract for wandb, MLflow and TensorBoard, on their own files; and a mirror that never blocks a run."""

import json
import math
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders import job
from patience import patient

from dapo_core.backoff import Backoff
from dapo_core.errors import SpecError
from dapo_trainer.trackers.mirror import Mirror, StepRefusedError, TrackedRun, Tracker, reason_of
from dapo_trainer.trackers.opening import OPENERS, check_trackers, mirrors

# Third parties' own: MLflow's tables make SQLAlchemy warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

RUN = "team.first-1a2b"
ACCURACY = "val-core/arithmetic/acc/mean@8"
Curves = dict[str, list[tuple[int, float]]]
QUICK = Backoff(0.01, 0.02)


def tracked(folder: Path) -> TrackedRun:
    return TrackedRun(RUN, "first", "team", {"model": {"source": "hf://a/b"}}, folder)


# ---- what each tracker has on disk, read by its own means


def in_tensorboard(folder: Path) -> list[Curves]:
    """Like TensorBoard itself, which drops what a restart does again."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [{tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}]


def in_mlflow(folder: Path) -> list[Curves]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("dapo")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return [
        {
            name.replace("_at_", "@"): [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        for run in runs
    ]


def records(path: Path) -> Iterator[bytes]:
    """Of a wandb file: LevelDB's log format after a header of 7 bytes, in blocks of 32 KiB."""
    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full one, or the last part of one
            yield whole
            whole = b""


def in_wandb(folder: Path) -> list[Curves]:
    """By run id; each attempt has a file of its own, which `wandb sync` adds to the same run."""
    from wandb.proto.wandb_internal_pb2 import Record

    def parsed(path: Path) -> list[Any]:
        return [Record.FromString(content) for content in records(path)]

    def finished(path: Path) -> bool:
        return any(record.HasField("exit") for record in parsed(path))

    runs: dict[str, Curves] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        # Its own process writes the file, and may still do so when `finish` returns.
        until(partial(finished, path))
        curves = runs.setdefault(path.stem.removeprefix("run-"), {})
        for record in parsed(path):
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            for name, value in items.items():
                if not name.startswith("_") and name != "dapo/step":
                    curves.setdefault(name, []).append((int(items["dapo/step"]), float(value)))
    assert set(runs) <= {RUN}
    return list(runs.values())


READERS: dict[str, Callable[[Path], list[Curves]]] = {
    "wandb": in_wandb,
    "mlflow": in_mlflow,
    "tensorboard": in_tensorboard,
}


@pytest.fixture(params=READERS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tracker, with its variables set for files below `tmp_path`."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("DAPO_TENSORBOARD_DIR", raising=False)
    chosen: str = request.param
    return chosen


def attempt(name: str, folder: Path, steps: Mapping[int, Mapping[str, float]], *, done: bool) -> None:
    tracker = OPENERS[name](tracked(folder), min(steps))
    for step, values in steps.items():
        tracker.log(step, time.time(), values)
    tracker.close(done=done)


def test_every_metric_arrives_under_its_name(name: str, tmp_path: Path) -> None:
    steps = {step: {"actor/entropy": step / 8, ACCURACY: 0.5, "timing_s/step": 3.25} for step in (1, 2, 3)}
    attempt(name, tmp_path, steps, done=True)
    [curves] = READERS[name](tmp_path)
    assert curves == {
        metric: [(step, values[metric]) for step, values in steps.items()]
        for metric in ("actor/entropy", ACCURACY, "timing_s/step")
    }


def test_a_resumed_run_is_the_same_run(name: str, tmp_path: Path) -> None:
    """The first attempt crashed after step 3, its checkpoint is that of step 2: step 3 is done again."""
    attempt(name, tmp_path, {step: {"loss": float(step)} for step in (1, 2, 3)}, done=False)
    attempt(name, tmp_path, {step: {"loss": step + 0.5} for step in (3, 4)}, done=True)
    [curves] = READERS[name](tmp_path)
    redone = [(3, 3.5), (4, 4.5)]
    kept = [(1, 1.0), (2, 2.0)] if name == "tensorboard" else [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert curves == {"loss": kept + redone}


def test_numbers_that_are_none_stop_nothing(name: str, tmp_path: Path) -> None:
    attempt(name, tmp_path, {1: {"loss": math.nan, "peak": math.inf}, 2: {"loss": 1.0, "peak": 2.0}}, done=True)
    [curves] = READERS[name](tmp_path)
    assert math.isnan(curves["loss"][0][1]) and curves["loss"][1:] == [(2, 1.0)]
    assert curves["peak"][0][1] > 1e38 and curves["peak"][1:] == [(2, 2.0)]


def test_mlflow_knows_how_the_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "addition")
    seen = []
    for step, done in ((1, False), (2, True)):
        attempt("mlflow", tmp_path, {step: {"loss": 1.0}}, done=done)
        client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("addition")
        assert experiment is not None
        [run] = client.search_runs([experiment.experiment_id])
        seen.append(run.info.status)
    assert seen == ["KILLED", "FINISHED"]
    assert {key: run.data.tags[key] for key in ("dapo.run_id", "dapo.name", "dapo.namespace")} == {
        "dapo.run_id": RUN, "dapo.name": "first", "dapo.namespace": "team"
    }  # fmt: skip


def test_mlflow_refuses_a_step_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    tracker = OPENERS["mlflow"](tracked(tmp_path), 1)
    with pytest.raises(StepRefusedError):
        tracker.log(1, time.time(), {"x" * 5000: 1.0})
    tracker.log(2, time.time(), {"loss": 1.0})


def test_tensorboards_files_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPO_TENSORBOARD_DIR", str(tmp_path / "volume"))
    attempt("tensorboard", tmp_path, {1: {"loss": 1.0}}, done=True)
    assert [path.name.split(".")[2] for path in (tmp_path / "volume" / RUN).iterdir()] == ["tfevents"]


# ---- the mirror


class Fake:
    """A tracker that is down, or hangs, while a test says so; it outlives what opens it."""

    def __init__(self) -> None:
        self.down, self.held = threading.Event(), threading.Event()
        self.refused: set[int] = set()
        self.opened: list[int] = []
        self.logged: list[int] = []
        self.closed: list[bool] = []
        self.told: list[tuple[str, str]] = []

    def open(self, _run: TrackedRun, first_step: int) -> Tracker:
        self._fault()
        self.opened.append(first_step)
        return self

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._fault()
        if step in self.refused:
            raise StepRefusedError("a name is too long")
        self.logged.append(step)

    def close(self, *, done: bool) -> None:
        self.closed.append(done)

    def mirror(self, folder: Path, **more: Any) -> Mirror:
        def notify(reason: str, message: str) -> None:
            self.told.append((reason, message))

        return Mirror("fake", self.open, tracked(folder), notify, backoff=QUICK, **more)

    def _fault(self) -> None:
        while self.held.is_set():
            time.sleep(0.01)
        if self.down.is_set():
            raise ConnectionError("https://me:secret@tracker:5000 does not answer")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patient(10)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(mirror: Mirror, seconds: float = 10, *, done: bool = True) -> bool:
    mirror.finish(patient(seconds), done=done)
    return mirror.join()


@pytest.mark.parametrize("done", [True, False])
def test_steps_arrive_in_order_and_the_run_ends(tmp_path: Path, done: bool) -> None:
    fake = Fake()
    mirror = fake.mirror(tmp_path)
    for step in range(7, 30):
        mirror.add(step, {"loss": 1.0})
    assert ended(mirror, done=done)
    assert (fake.opened, fake.logged, fake.closed, fake.told) == ([7], list(range(7, 30)), [done], [])


def test_an_outage_is_one_event_and_loses_nothing_that_fits(tmp_path: Path) -> None:
    fake = Fake()
    mirror = fake.mirror(tmp_path)
    mirror.add(1, {})
    until(lambda: fake.logged == [1])
    for first in (2, 7):
        fake.down.set()
        for step in range(first, first + 5):
            mirror.add(step, {})
        until(lambda: bool(fake.told))
        fake.down.clear()
        until(partial(lambda last: fake.logged[-1] == last, first + 4))
    assert ended(mirror)
    assert fake.logged == list(range(1, 12))
    [(reason, message)] = fake.told
    assert reason == "TrackerFailed" and "does not answer" in message and "secret" not in message


def test_the_oldest_steps_are_dropped_when_the_outage_is_long(tmp_path: Path) -> None:
    fake = Fake()
    fake.down.set()
    mirror = fake.mirror(tmp_path, max_waiting=10)
    mirror.add(0, {})
    until(lambda: bool(fake.told))  # it is being tried
    for step in range(1, 101):
        mirror.add(step, {})
    fake.down.clear()
    assert not ended(mirror)
    assert fake.logged == [0, *range(91, 101)]
    assert fake.told[1:] == [("TrackerIncomplete", "fake did not receive 90 of this attempt's 101 steps.")]


def test_a_refused_step_holds_up_no_other(tmp_path: Path) -> None:
    fake = Fake()
    fake.refused = {2, 3}
    mirror = fake.mirror(tmp_path)
    for step in (1, 2, 3, 4):
        mirror.add(step, {})
    assert not ended(mirror)
    assert fake.logged == [1, 4] and fake.opened == [1]
    assert [reason for reason, _ in fake.told] == ["TrackerFailed", "TrackerIncomplete"]


@pytest.mark.parametrize("fault", ["down", "held"])
def test_a_tracker_that_is_gone_holds_up_neither_steps_nor_the_end(tmp_path: Path, fault: str) -> None:
    fake = Fake()
    getattr(fake, fault).set()
    mirror = fake.mirror(tmp_path)
    for step in range(50):
        mirror.add(step, {"loss": 1.0})
    assert not ended(mirror, 0.2)
    assert fake.logged == [] and fake.told[-1] == (
        "TrackerIncomplete",
        "fake did not receive 50 of this attempt's 50 steps.",
    )
    fake.held.clear()


def test_a_run_without_a_step_opens_nothing(tmp_path: Path) -> None:
    fake = Fake()
    assert ended(fake.mirror(tmp_path))
    assert (fake.opened, fake.closed, fake.told) == ([], [], [])


def test_a_jobs_trackers_get_what_the_recorder_gets(tmp_path: Path) -> None:
    fakes = {name: Fake() for name in ("wandb", "mlflow", "tensorboard")}
    openers = {name: fake.open for name, fake in fakes.items()}
    made = mirrors(job(trackers=["mlflow", "wandb"]), RUN, tmp_path, lambda *_: None, openers)
    for mirror in made:
        mirror.add(1, {"loss": 1.0})
        assert ended(mirror)
    assert [fakes[name].logged for name in ("wandb", "mlflow", "tensorboard")] == [[1], [1], []]
    assert mirrors(job(), RUN, tmp_path, lambda *_: None) == []


# ---- before anything starts


@pytest.mark.parametrize(
    ("names", "environment", "missing"),
    [
        pytest.param(["mlflow"], {}, "MLFLOW_TRACKING_URI", id="mlflow without a server"),
        pytest.param(["mlflow"], {"MLFLOW_TRACKING_URI": "http://m"}, None, id="mlflow with one"),
        pytest.param(["tensorboard"], {"DAPO_ROLE": "head"}, "DAPO_TENSORBOARD_DIR", id="files of a pod"),
        pytest.param(
            ["tensorboard"], {"DAPO_ROLE": "head", "DAPO_TENSORBOARD_DIR": "/v"}, None, id="files of a volume"
        ),
        pytest.param(["tensorboard"], {}, None, id="files of this machine"),
        pytest.param(["wandb"], {}, None, id="wandb, which may be logged in"),
        pytest.param([], {}, None, id="none"),
    ],
)
def test_what_is_missing_is_named(names: list[str], environment: dict[str, str], missing: str | None) -> None:
    if missing is None:
        check_trackers(names, environment)
        return
    with pytest.raises(SpecError, match=rf"spec.trackers has {names[0]}, but the variable {missing} is not set"):
        check_trackers(names, environment)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("GET http://u:p@h/x failed", "GET http://h/x failed", id="of a URL"),
        pytest.param(f"key {'a1' * 20} is unknown", "key  is unknown", id="a key"),
        pytest.param("two\n lines", "two lines", id="one line"),
        pytest.param("", "OSError", id="nothing said"),
    ],
)
def test_an_error_is_shown_without_credentials(text: str, shown: str) -> None:
    assert reason_of(OSError(text)) == shown
