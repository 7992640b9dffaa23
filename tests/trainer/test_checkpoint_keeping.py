"""Which checkpoints stay, which go, and what they have in common."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_folders import harm, local, save
from store_fakes import MemoryStore, Notebook

from dapo_core.naming import checkpoint_prefix, manifest_key
from dapo_core.objectstore import ObjectStore
from dapo_core.run.checkpoint import Retention
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint


def test_retention_removes_and_says_why(checkpoints: CheckpointStore, notes: Notebook, tmp_path: Path) -> None:
    for step, value in ((5, 0.9), (10, 0.2), (15, 0.3), (20, 0.1)):
        save(checkpoints, tmp_path, step, **{"val": value})
    assert checkpoints.retain(Retention(keep_last=1, keep_best=1, best_metric="val")) == [15, 10]
    assert checkpoints.steps() == [20, 5]
    assert notes.states() == {5: "committed", 10: "deleted", 15: "deleted", 20: "committed"}
    why = {row.step: row.decision for row in notes.rows}
    assert why[5] == "Kept as number 1 of the best 1 by val (0.9)."
    assert why[20] == "Kept as number 1 of the newest 1."
    assert why[10] == "Removed: not among the newest 1 or best 1 by val (0.2)."
    assert not [info for info in checkpoints.store.list("r/") if "step-000010" in info.key]


def test_the_manifest_goes_first(tmp_path: Path) -> None:
    store = MemoryStore()
    checkpoints = CheckpointStore(store, "r")
    save(checkpoints, tmp_path, 5, 10)
    store.log.clear()
    checkpoints.retain(Retention(keep_last=1))
    deleted = [key for operation, key in store.log if operation == "delete"]
    assert deleted[0] == manifest_key("r", 5, 1) and len(deleted) == 3


@pytest.fixture
def aged(store: ObjectStore, tmp_path: Path) -> Iterator[ObjectStore]:
    """Step 5 committed, step 10 torn long ago, step 15 torn just now."""
    save(CheckpointStore(store, "r"), tmp_path, 5)
    for step in (10, 15):
        store.put_bytes(checkpoint_prefix("r", step, 1) + "data.pt", b"x")
    old = checkpoint_prefix("r", 10, 1) + "data.pt"
    if isinstance(store, MemoryStore):
        store.objects[old] = (b"x", 1.0)
    else:
        os.utime(tmp_path / "store" / old, (1, 1))
    yield store


def test_incomplete_uploads_are_swept_after_a_grace_period(aged: ObjectStore, notes: Notebook) -> None:
    checkpoints = CheckpointStore(aged, "r", notes)
    assert checkpoints.sweep(busy=[10]) == []
    assert checkpoints.sweep() == [10]
    assert checkpoints.sweep(grace_seconds=0) == [15]
    assert checkpoints.steps() == [5] and notes.reasons() == ["CheckpointSwept"] * 2
    assert notes.states() == {10: "deleted", 15: "deleted"}


def test_a_commit_that_was_not_recorded_is_recorded(
    checkpoints: CheckpointStore, notes: Notebook, tmp_path: Path
) -> None:
    save(CheckpointStore(checkpoints.store, "r"), tmp_path, 5, 10)
    checkpoints.record_committed()
    assert notes.states() == {5: "committed", 10: "committed"}


def with_tokenizer(folder: Path, step: int, tokenizer: bytes = b"{}") -> Path:
    made = local(folder, step)
    (made / "tokenizer.json").write_bytes(tokenizer)
    return made


def shared_keys(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("r/checkpoints/shared/")]


def test_what_does_not_change_is_stored_once(tmp_path: Path) -> None:
    store = MemoryStore()
    checkpoints = CheckpointStore(store, "r")
    for step in (5, 10, 15):
        checkpoints.commit(LocalCheckpoint(step, with_tokenizer(tmp_path, step), 1, "d"))
    puts = [key for operation, key in store.log if operation == "put" and "/shared/" in key]
    assert len(puts) == 1 and shared_keys(store) == puts
    for step in (5, 15):
        checkpoints.restore(checkpoints.manifest(step), tmp_path / "restored")
        assert (tmp_path / "restored" / "tokenizer.json").read_bytes() == b"{}"
    checkpoints.verify(checkpoints.manifest(10))


def test_shared_files_go_with_the_last_checkpoint_that_names_them(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    for step, tokenizer in ((5, b"old"), (10, b"new"), (15, b"new")):
        checkpoints.commit(LocalCheckpoint(step, with_tokenizer(tmp_path, step, tokenizer), 1, "d"))
    assert len(shared_keys(checkpoints.store)) == 2
    checkpoints.retain(Retention(keep_last=1))
    assert [leftover.kind for leftover in checkpoints.leftovers(grace_seconds=0)] == ["Unused"]
    assert checkpoints.leftovers() == [], "an upload may be about to name it"
    checkpoints.sweep(grace_seconds=0)
    assert len(shared_keys(checkpoints.store)) == 1
    assert checkpoints.restore_newest(tmp_path / "restored") is not None


def test_shared_files_stay_while_a_manifest_cannot_be_read(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoints.commit(LocalCheckpoint(step, with_tokenizer(tmp_path, step, b"%d" % step), 1, "d"))
    harm(checkpoints.store, 5, "manifest.json", lambda data: data[:20])
    checkpoints.sweep(grace_seconds=0)
    assert len(shared_keys(checkpoints.store)) == 2
