"""Uploads beside training: the newest counts, nothing raises, a bad store costs a checkpoint and never a step."""

import threading
import time
from pathlib import Path

import pytest
from patience import patient
from store_fakes import MemoryStore, Notebook

from dapo_core.backoff import Backoff
from dapo_core.errors import StoreError
from dapo_core.naming import checkpoint_prefix, manifest_key
from dapo_core.objectstore import FolderStore
from dapo_core.run.checkpoint import Retention
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.checkpoints.uploader import CheckpointUploader

QUICK = Backoff(0.01, 0.02)


class Bench:
    """An uploader on a store that is down, or holds back its answers, while a test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = Notebook()
        self.down = threading.Event()
        self.held = threading.Event()
        self.store = MemoryStore(self._fault)
        self.checkpoints = CheckpointStore(self.store, "r", self.notes)
        self.uploader = CheckpointUploader(self.checkpoints, Retention(keep_last=2), backoff=QUICK)

    def _fault(self, operation: str, _key: str) -> None:
        while self.held.is_set() and operation == "put":
            time.sleep(0.01)
        if self.down.is_set() and operation == "put":
            raise StoreError("The store is down.")

    def local(self, step: int) -> Path:
        made = self.folder / f"global_step_{step}"
        made.mkdir()
        (made / "model.pt").write_bytes(b"%d" % step)
        return made

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def upload(self, *steps: int) -> None:
        for step in steps:
            self.uploader.upload(LocalCheckpoint(step, self.local(step), 1, "d"))

    def until_putting(self, step: int) -> None:
        deadline = time.monotonic() + patient(5)
        while ("put", f"{checkpoint_prefix('r', step, 1)}model.pt") not in self.store.log:
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_checkpoints_are_committed_and_kept_by_rule(bench: Bench) -> None:
    for step in (5, 10, 15):
        bench.upload(step)
        assert bench.uploader.wait(patient(10))
    assert bench.uploader.close(5)
    assert bench.checkpoints.steps() == [15, 10] and bench.uploader.failures == 0
    assert bench.notes.states() == {5: "deleted", 10: "committed", 15: "committed"}
    assert bench.notes.reasons() == ["CheckpointCommitted"] * 3
    assert bench.left == ["global_step_15"], "the newest stays, for a restart on this machine"


def test_a_bad_store_is_tried_again(bench: Bench) -> None:
    bench.down.set()
    bench.upload(5)
    assert not bench.uploader.wait(0.2)
    bench.down.clear()
    assert bench.uploader.close(5)
    assert bench.checkpoints.steps() == [5] and bench.uploader.failures == 0
    assert bench.notes.reasons() == ["CheckpointDelayed", "CheckpointCommitted"], "told once, not at each try"


def test_a_newer_checkpoint_takes_the_place_of_one_that_can_not_be_stored(bench: Bench) -> None:
    bench.down.set()
    bench.upload(5)
    bench.until_putting(5)
    bench.upload(10)
    bench.until_putting(10)
    bench.down.clear()
    assert bench.uploader.wait(patient(10))
    assert bench.checkpoints.steps() == [10] and bench.uploader.failures == 1
    assert bench.notes.states() == {5: "failed", 10: "committed"}
    assert "CheckpointFailed" in bench.notes.reasons() and bench.left == ["global_step_10"]


def test_a_slow_store_keeps_one_waiting_the_newest(bench: Bench) -> None:
    bench.held.set()
    bench.upload(5)
    bench.until_putting(5)
    bench.upload(10, 15)
    assert bench.uploader.busy == [5, 15]
    bench.held.clear()
    assert bench.uploader.close(5)
    assert bench.checkpoints.steps() == [15, 5]
    assert bench.notes.states()[10] == "failed" and not (bench.folder / "global_step_10").exists()


def test_the_end_does_not_wait_for_a_bad_store(bench: Bench) -> None:
    bench.down.set()
    bench.upload(5)
    began = time.monotonic()
    assert not bench.uploader.close(0.3)
    assert time.monotonic() - began < 2
    assert (bench.folder / "global_step_5" / "model.pt").exists()
    assert str(bench.folder / "global_step_5") in bench.notes.events[-1][1]


def test_uploading_does_not_wait(bench: Bench) -> None:
    bench.held.set()
    bench.upload(5, 10, 15)
    assert bench.uploader.busy, "the store is still held, and upload has returned all the same"
    bench.held.clear()
    assert bench.uploader.wait(patient(10))


def test_a_folder_that_is_gone_costs_that_checkpoint(bench: Bench) -> None:
    bench.uploader.upload(LocalCheckpoint(5, bench.folder / "none", 1, "d"))
    assert bench.uploader.wait(patient(10))
    bench.upload(10)
    assert bench.uploader.wait(patient(10))
    assert bench.checkpoints.steps() == [10] and bench.uploader.failures == 1


def test_retention_that_fails_costs_no_checkpoint(bench: Bench) -> None:
    bench.upload(5)
    assert bench.uploader.wait(patient(10))
    lists = iter([True])

    def fault(operation: str, key: str) -> None:
        # The first manifest that is read after this one was written is read by retention.
        if operation == "get" and manifest_key("r", 10, 1) in bench.store.objects and next(lists, False):
            raise StoreError("down")

    bench.store.fault = fault
    bench.upload(10)
    assert bench.uploader.wait(patient(10))
    assert bench.uploader.failures == 0 and "RetentionFailed" in bench.notes.reasons()


def test_nothing_to_do(bench: Bench) -> None:
    assert bench.uploader.close(1)


def test_a_folder_store_takes_the_files_without_copying(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    model = tmp_path / "local" / "model.pt"
    model.write_bytes(b"weights")
    inode = model.stat().st_ino
    uploader = CheckpointUploader(CheckpointStore(FolderStore(tmp_path / "store"), "r"), Retention())
    uploader.upload(LocalCheckpoint(5, tmp_path / "local", 1, "d"))
    assert uploader.close(5)
    stored = tmp_path / "store" / "r" / "checkpoints" / "step-000005-attempt-1" / "model.pt"
    assert stored.stat().st_ino == inode and stored.stat().st_nlink == 1 and not model.exists()
