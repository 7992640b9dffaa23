"""Ranks load a checkpoint's weights while its other files are still arriving, and never a file that is not verified."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builders import job
from checkpoint_folders import harm, shards
from patience import patient
from store_fakes import MemoryStore, Notebook

from dapo_core.backoff import Backoff
from dapo_core.errors import CheckpointError
from dapo_core.objectstore import StoreUnreachableError
from dapo_trainer.checkpoints.background_restore import FETCHING, BackgroundRestore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.checkpoints.fetching import remove_weights
from dapo_trainer.checkpoints.restore import Found, Report, Restored, restore, retry_unreachable

RANKS = 6  # more than files that are fetched at a time
OPTIMIZER = f"actor/optim_world_size_{RANKS}_rank_0.pt"
MODEL = f"actor/model_world_size_{RANKS}_rank_0.pt"
FIRST = ["actor/fsdp_config.json", *(f"actor/model_world_size_{RANKS}_rank_{rank}.pt" for rank in range(RANKS))]


@dataclass
class Start:
    """The second attempt of a run with checkpoints at steps 5 and 10. The optimizer's state leaves the store once
    `arrive` is set."""

    folder: Path
    origin: str | None = None
    run_id: str = "r"
    store: MemoryStore = field(default_factory=MemoryStore)
    arrive: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    fault: Callable[[str], None] = lambda _key: None

    def __post_init__(self) -> None:
        self.job = job(checkpoints={"resumeFrom": self.origin})
        saved = CheckpointStore(self.store, "r")
        for step in (5, 10):
            saved.commit(LocalCheckpoint(step, shards(self.folder, step, RANKS), 1, self.job.spec.digest()))
        self.checkpoints = CheckpointStore(self.store, self.run_id, Notebook())
        self.work = self.folder / self.run_id / "attempt-2"
        self.work.mkdir(parents=True)
        self.restoring = BackgroundRestore(self._restore, self.said.append)
        self.store.fault = self._hold

    def _hold(self, operation: str, key: str) -> None:
        if operation == "get" and "/optim_" in key:
            assert self.arrive.wait(patient(30.0))
            self.fault(key)

    def _restore(self, found: Found, report: Report) -> Restored | None:
        def once() -> Restored | None:
            return restore(self.checkpoints, self.job, self.work, 2, list, found)

        return retry_unreachable(once, report, patient(30.0), Backoff(0.01, 0.01))


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


@pytest.mark.parametrize(
    ("origin", "run_id"),
    [
        pytest.param(None, "r", id="of this run"),
        pytest.param("r", "s", id="the newest of another run"),
        pytest.param("r@10", "s", id="one of another run"),
    ],
)
def test_weights_are_loaded_before_the_last_file_is_there(origin: str | None, run_id: str, tmp_path: Path) -> None:
    start = Start(tmp_path, origin, run_id)
    start.restoring.begin()
    early = start.restoring.wait_for_weights()
    assert early is not None and early.weights is not None and not early.folder.exists()
    found = {path.relative_to(early.weights).as_posix(): path for path in early.weights.rglob("*") if path.is_file()}
    assert sorted(found) == sorted(FIRST) and found[MODEL].read_bytes() == b"model 0 of 10"
    assert not start.arrive.is_set(), "nothing else has left the store"

    start.arrive.set()
    restored = start.restoring.wait()
    assert restored == early and restored.weights is None
    assert (restored.folder / OPTIMIZER).read_bytes() == b"optim 0 of 10"
    assert (restored.folder / MODEL).samefile(found[MODEL]), "the disk holds it once"
    remove_weights(start.work)
    assert not early.weights.exists()


def test_a_store_that_is_fast_enough_is_loaded_from_once(start: Start) -> None:
    start.arrive.set()
    start.restoring.begin()
    start.restoring.wait()
    assert start.restoring.wait_for_weights() is None


def test_weights_that_are_not_what_was_saved_are_not_loaded(start: Start) -> None:
    harm(start.store, 10, MODEL, lambda data: data[:-1] + b"x")
    start.restoring.begin()
    start.arrive.set()
    assert (restored := start.restoring.wait()) is not None and restored.manifest.step == 5
    assert not [folder for folder in start.work.glob("*.weights") if "step-10" in folder.name]


def test_another_checkpoint_takes_the_place_of_one_whose_weights_are_loaded(start: Start) -> None:
    start.arrive.set()
    harm(start.store, 10, OPTIMIZER, lambda data: data[:-1] + b"x")
    start.arrive.clear()
    start.restoring.begin()
    early = start.restoring.wait_for_weights()
    assert early is not None and early.weights is not None and early.manifest.step == 10
    start.arrive.set()
    restored = start.restoring.wait()
    assert restored is not None and restored != early and restored.manifest.step == 5
    assert (early.weights / MODEL).read_bytes() == b"model 0 of 10", "whoever loads them is not disturbed"


def test_weights_stay_while_the_rest_is_fetched_again(start: Start) -> None:
    failures = iter([StoreUnreachableError("Nobody there.")] * 2)

    def broken(_key: str) -> None:
        if (error := next(failures, None)) is not None:
            raise error

    start.fault = broken
    start.restoring.begin()
    early = start.restoring.wait_for_weights()
    assert early is not None and early.weights is not None
    inode = (early.weights / MODEL).stat().st_ino
    start.arrive.set()
    assert start.restoring.wait() == early
    assert (early.weights / MODEL).stat().st_ino == inode
    assert set(start.said) <= {FETCHING, "Nobody there. Retrying."}


def test_without_links_all_files_are_loaded_together(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links on this disk")

    monkeypatch.setattr("os.link", refuse)
    start.arrive.set()
    start.restoring.begin()
    restored = start.restoring.wait()
    assert restored is not None and restored.manifest.step == 10 and list(start.work.glob(".*")) == []


def test_what_an_attempt_had_linked_when_it_ended_is_removed(start: Start) -> None:
    left = start.work.parent / "attempt-1" / ".step-5-attempt-1.weights"
    left.mkdir(parents=True)
    start.arrive.set()
    start.restoring.begin()
    start.restoring.wait()
    assert not left.exists()


def test_a_checkpoint_without_an_intact_file_ends_the_wait(start: Start) -> None:
    start.arrive.set()
    for step in (5, 10):
        harm(start.store, step, OPTIMIZER, lambda data: data[:-1])
    start.restoring.begin()
    with pytest.raises(CheckpointError, match="No checkpoint of this run is intact"):
        start.restoring.wait()
    assert start.restoring.wait_for_weights() is None
