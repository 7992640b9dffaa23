"""A checkpoint's files arrive while the attempt starts, and are verified as if it had waited for them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builders import job
from checkpoint_folders import harm, local
from patience import patient
from store_fakes import MemoryStore, Notebook

from dapo_core.backoff import Backoff
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.naming import checkpoint_prefix
from dapo_core.objectstore import StoreUnreachableError
from dapo_trainer.checkpoints.background_restore import FETCHING, BackgroundRestore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.checkpoints.restore import Found, Report, Restored, restore, retry_unreachable

JOB = job()


@dataclass
class Start:
    """The second attempt of a run with checkpoints at steps 5 and 10. Tensors leave the store once `arrive` is set."""

    folder: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    notes: Notebook = field(default_factory=Notebook)
    arrive: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    fault: Callable[[str, str], None] = lambda _operation, _key: None

    def __post_init__(self) -> None:
        self.checkpoints = CheckpointStore(self.store, "r", self.notes)
        for step in (5, 10):
            self.checkpoints.commit(LocalCheckpoint(step, local(self.folder, step), 1, JOB.spec.digest()))
        self.work = self.folder / "r" / "attempt-2"
        self.work.mkdir(parents=True)
        self.restoring = BackgroundRestore(self._restore, self.said.append)
        self.store.fault = self._hold

    def _hold(self, operation: str, key: str) -> None:
        self.fault(operation, key)
        if operation == "get" and key.endswith(".pt"):
            assert self.arrive.wait(patient(30.0))

    def _restore(self, found: Found, report: Report) -> Restored | None:
        def once() -> Restored | None:
            return restore(self.checkpoints, JOB, self.work, 2, list, found)

        return retry_unreachable(once, report, patient(30.0), Backoff(0.01, 0.01))


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def test_the_start_goes_on_while_files_are_on_their_way(start: Start) -> None:
    found = start.restoring.begin()
    assert found is not None and found.manifest.step == 10 and not found.folder.exists()
    start.restoring.check()
    assert start.said == [], "nobody waits yet"
    threading.Timer(0.2, start.arrive.set).start()
    restored = start.restoring.wait()
    assert restored == found and (found.folder / "data.pt").read_bytes() == b"position 10"
    assert start.said == [FETCHING]


def test_nobody_is_told_of_files_that_have_arrived(start: Start) -> None:
    start.arrive.set()
    start.restoring.begin()
    start.restoring.wait()
    start.said.clear()
    start.restoring.wait()
    assert start.said == []


def test_a_corrupt_file_is_noticed_on_its_way_and_an_older_checkpoint_is_taken(start: Start) -> None:
    start.arrive.set()
    harm(start.store, 10, "data.pt", lambda data: data[:-1] + b"x")
    start.arrive.clear()
    found = start.restoring.begin()
    assert found is not None and found.manifest.step == 10
    start.arrive.set()
    restored = start.restoring.wait()
    assert restored is not None and restored.manifest.step == 5 and restored.folder.name == "global_step_5"
    assert start.restoring.found == restored
    reason, message = start.notes.events[-1]
    assert reason == "CheckpointDamaged" and "the content of data.pt has changed" in message


def test_without_an_intact_checkpoint_the_attempt_ends_when_it_looks(start: Start) -> None:
    for step in (5, 10):
        start.store.delete(checkpoint_prefix("r", step, 1) + "data.pt")
    assert start.restoring.begin() is not None
    start.arrive.set()
    for look in (start.restoring.wait, start.restoring.check):
        with pytest.raises(CheckpointError, match=r"No checkpoint of this run is intact: .*data\.pt is missing"):
            look()


def test_what_fails_before_a_checkpoint_is_found_ends_the_start_at_once(start: Start) -> None:
    def down(operation: str, _key: str) -> None:
        if operation == "list":
            raise StoreError("The bucket is gone.")

    start.fault = down
    with pytest.raises(StoreError, match="The bucket is gone"):
        start.restoring.begin()


def test_a_store_that_stops_answering_is_waited_for_and_told_to_whoever_waits(start: Start) -> None:
    failures = iter([StoreUnreachableError("Nobody there.")] * 2)
    failed = threading.Event()

    def broken(operation: str, key: str) -> None:
        if operation == "get" and key.endswith("data.pt"):
            if (error := next(failures, None)) is not None:
                raise error
            failed.set()

    start.fault = broken
    start.restoring.begin()
    start.arrive.set()
    assert failed.wait(patient(30.0))
    restored = start.restoring.wait()
    assert restored is not None and restored.manifest.step == 10
    assert set(start.said) <= {FETCHING, "Nobody there. Retrying."}


def test_a_run_without_checkpoints_starts_from_the_model(tmp_path: Path) -> None:
    restoring = BackgroundRestore(lambda _found, _report: None, lambda _: None)
    assert restoring.begin() is None and restoring.wait() is None and restoring.found is None
