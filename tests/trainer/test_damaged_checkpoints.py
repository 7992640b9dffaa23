"""Damaged and foreign checkpoints are never resumed from, and a run never restarts from step 0 by mistake."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from checkpoint_folders import harm, save
from store_fakes import MemoryStore, Notebook

from dapo_core.errors import CheckpointError, StoreError
from dapo_core.naming import checkpoint_prefix
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.checkpoints.restore import check_fit

T = TypeVar("T")
COMMITTING = Path(__file__).parent / "fakes" / "committing.py"


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes] | None, str]] = {
    "a changed byte": ("actor/model.pt", lambda data: data[:-1] + b"x", "the content of actor/model.pt has changed"),
    "a truncated file": ("data.pt", lambda data: data[:-3], r"data.pt has 8 bytes instead of 11"),
    "an emptied file": ("data.pt", lambda data: b"", r"data.pt has 0 bytes instead of 11"),
    "a missing file": ("data.pt", None, "data.pt is missing"),
    "half a manifest": ("manifest.json", lambda data: data[: len(data) // 2], "manifest.json is corrupt"),
    "a manifest of another step": (
        "manifest.json",
        lambda data: data.replace(b'"step": 10', b'"step": 11'),
        "is of step 11",
    ),
    "a manifest of a later program": (
        "manifest.json",
        lambda data: data.replace(b'"version": 4', b'"version": 5'),
        "has manifest version 5: upgrade dapo to read it",
    ),
    "a manifest that points outside": (
        "manifest.json",
        lambda data: data.replace(b"data.pt", b"../../x"),
        "outside the checkpoint",
    ),
    "a manifest without a sum": (
        "manifest.json",
        lambda data: re.sub(rb'"sha256": "..', b'"sha256": "//', data),
        "is not a SHA-256",
    ),
    "a manifest that is a list": ("manifest.json", lambda data: b"[]", "manifest.json is corrupt"),
}


@pytest.mark.parametrize(("name", "change", "sentence"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_corrupt_newest_checkpoint_is_skipped_with_an_event(
    name: str,
    change: Callable[[bytes], bytes] | None,
    sentence: str,
    checkpoints: CheckpointStore,
    notes: Notebook,
    tmp_path: Path,
) -> None:
    save(checkpoints, tmp_path, 5, 10)
    if change is None:
        checkpoints.store.delete(checkpoint_prefix("r", 10, 1) + name)
    else:
        harm(checkpoints.store, 10, name, change)
    found = checkpoints.restore_newest(tmp_path / "restored")
    assert found is not None and found.step == 5
    assert (tmp_path / "restored" / "data.pt").read_bytes() == b"position 5"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    reason, message = notes.events[-1]
    assert reason == "CheckpointDamaged" and message.endswith("Trying the previous checkpoint.")
    assert sentence.replace("\\", "") in message and notes.states()[10] == "failed"


def test_a_run_whose_checkpoints_are_all_corrupt_does_not_restart_from_zero(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    save(checkpoints, tmp_path, 5, 10)
    for step in (5, 10):
        harm(checkpoints.store, step, "data.pt", lambda data: b"")
    with pytest.raises(CheckpointError, match=r"No checkpoint of this run is intact: .*step 10.*step 5"):
        checkpoints.restore_newest(tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_checkpoint_of_another_job_is_refused(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    save(checkpoints, tmp_path, 5)
    with pytest.raises(CheckpointError, match=r"step 5 was saved by a different job .*or start a new run"):
        checkpoints.restore_newest(tmp_path / "restored", check=lambda manifest: check_fit(manifest, "other"))
    assert not (tmp_path / "restored").exists()
    accepted = checkpoints.restore_newest(tmp_path / "restored", check=lambda manifest: check_fit(manifest, "d"))
    assert accepted is not None


def test_a_checkpoint_marked_as_corrupt_is_not_restored_again(
    checkpoints: CheckpointStore, notes: Notebook, tmp_path: Path
) -> None:
    save(checkpoints, tmp_path, 5, 10)
    checkpoints.mark_corrupt(checkpoints.manifest(10), "A shard is torn.")
    found = checkpoints.restore_newest(tmp_path / "restored")
    assert found is not None and found.step == 5
    assert notes.events[-1] == ("CheckpointDamaged", "A shard is torn. Trying the previous checkpoint.")
    assert notes.states()[10] == "failed" and checkpoints.sweep(grace_seconds=0) == [10]
    CheckpointStore(checkpoints.store, "another").mark_corrupt(found, "not mine")
    assert checkpoints.steps() == [5]


def test_a_run_whose_last_checkpoint_is_corrupt_does_not_restart_from_zero(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    save(checkpoints, tmp_path, 5)
    checkpoints.mark_corrupt(checkpoints.manifest(5), "A shard is torn.")
    assert checkpoints.sweep(grace_seconds=0) == []
    with pytest.raises(CheckpointError, match=r"No checkpoint .* is intact: The checkpoint at step 5 is corrupt\."):
        checkpoints.restore_newest(tmp_path / "restored")


def test_a_store_that_fails_is_no_damage(tmp_path: Path, notes: Notebook) -> None:
    store = MemoryStore()
    checkpoints = CheckpointStore(store, "r", notes)
    save(checkpoints, tmp_path, 5, 10)

    def down(operation: str, key: str) -> None:
        if operation == "get" and key.endswith(".pt"):
            raise StoreError("The store is down.")

    store.fault = down
    with pytest.raises(StoreError, match="down") as caught:
        checkpoints.restore_newest(tmp_path / "restored")
    assert not isinstance(caught.value, CheckpointError) and notes.reasons() == []


def test_restoring_replaces_what_is_there(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    save(checkpoints, tmp_path, 5)
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / "old").write_text("")
    checkpoints.restore_newest(tmp_path / "restored")
    assert sorted(path.name for path in (tmp_path / "restored").iterdir()) == ["actor", "data.pt"]


def test_restoring_to_an_impossible_place_raises(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    save(checkpoints, tmp_path, 5)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written to .*: Not a directory"):
        checkpoints.restore_newest(tmp_path / "file" / "restored")
