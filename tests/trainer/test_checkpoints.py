"""Checkpoints: whole or absent, whatever interrupts their upload, and one of each attempt."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from checkpoint_folders import harm, local, save
from store_fakes import MemoryStore, Notebook

from dapo_core.errors import CheckpointError, StoreError
from dapo_core.naming import NO_ATTEMPT, checkpoint_prefix, manifest_key
from dapo_core.objectstore import Content, StoreUnreachableError, open_store
from dapo_core.objectstore.contract import PART_BYTES
from dapo_core.run.checkpoint import FileEntry, Retention, newest_committed, parse_manifest
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint

T = TypeVar("T")
COMMITTING = Path(__file__).parent / "fakes" / "committing.py"


def test_what_is_committed_is_restored(checkpoints: CheckpointStore, notes: Notebook, tmp_path: Path) -> None:
    metrics = {"acc": 0.5, "loss": float("nan")}
    manifest = checkpoints.commit(LocalCheckpoint(5, local(tmp_path, 5), 2, "d", metrics))
    assert (manifest.step, manifest.attempt, manifest.size_bytes) == (5, 2, 1010)
    assert [entry.path for entry in manifest.files] == ["actor/model.pt", "data.pt"]
    found = checkpoints.restore_newest(tmp_path / "newest")
    assert found == replace(manifest, metrics={"acc": 0.5}) and newest_committed(checkpoints.manifests()) == found
    checkpoints.restore(manifest, tmp_path / "restored")
    assert (tmp_path / "restored" / "actor" / "model.pt").read_bytes() == b"\5" * 1000
    assert (tmp_path / "restored" / "data.pt").read_bytes() == b"position 5"
    row = notes.rows[-1]
    assert (row.state, row.size_bytes, row.files, row.spec_digest) == ("committed", 1010, 2, "d")
    assert row.uri.endswith("r/checkpoints/step-000005-attempt-2") and row.metrics == {"acc": 0.5}


def test_the_manifest_is_written_last_and_after_the_metrics_are_safe(tmp_path: Path, notes: Notebook) -> None:
    store = MemoryStore()
    save(CheckpointStore(store, "r", notes), tmp_path, 5)
    puts = [key for operation, key in store.log if operation == "put"]
    assert puts[-1] == manifest_key("r", 5, 1) and len(puts) == 3 and notes.syncs == 1


def test_without_checkpoints_a_run_starts_from_the_model(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    assert checkpoints.restore_newest(tmp_path / "x") is None
    assert checkpoints.steps() == [] and not (tmp_path / "x").exists()


def test_a_step_done_again_replaces_the_torn_and_the_committed(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    save(checkpoints, tmp_path / "first", 5)
    checkpoints.store.put_bytes(checkpoint_prefix("r", 5, 1) + "of-another-rank.pt", b"x")
    again = local(tmp_path / "second", 5, size=7)
    checkpoints.commit(LocalCheckpoint(5, again, 2, "d"))
    found = checkpoints.restore_newest(tmp_path / "restored")
    assert found is not None and (found.attempt, found.size_bytes) == (2, 17)
    checkpoints.retain(Retention())
    keys = [info.key for info in checkpoints.store.list("r/")]
    assert keys == [checkpoint_prefix("r", 5, 2) + name for name in ("actor/model.pt", "data.pt", "manifest.json")]


class ForgetfulStore(MemoryStore):
    """Reports the first `times` uploads of a model as successful and stores nothing, as a failed completion of an
    upload in parts that is answered with 200."""

    times = 1

    def put_file(self, key: str, path: Path, *, give: bool = False) -> Content:
        content = super().put_file(key, path, give=give)
        if key.endswith("model.pt") and self.times > 0:
            self.times -= 1
            self.objects.pop(key)
        return content


def test_no_manifest_names_a_file_that_the_store_does_not_list(tmp_path: Path, notes: Notebook) -> None:
    store = ForgetfulStore()
    checkpoints = CheckpointStore(store, "r", notes)
    with pytest.raises(StoreUnreachableError, match=r"actor/model.pt of the checkpoint at step 5 .* does not list it"):
        save(checkpoints, tmp_path / "once", 5)
    assert checkpoints.steps() == [] and notes.rows == []
    store.times = 1

    def again(write: Callable[[], T]) -> T:
        try:
            return write()
        except StoreUnreachableError:
            return write()

    checkpoints.commit(LocalCheckpoint(5, local(tmp_path / "again", 5), 1, "d"), retry=again)
    checkpoints.verify(checkpoints.manifest(5))


def test_a_file_listed_at_another_size_is_not_committed(tmp_path: Path) -> None:
    store = MemoryStore()

    def truncate(operation: str, key: str) -> None:
        if operation == "list" and (model := checkpoint_prefix("r", 5, 1) + "actor/model.pt") in store.objects:
            store.objects[model] = (b"12", 0.0)

    store.fault = truncate
    with pytest.raises(StoreError, match=r"was stored with 1000 bytes, but memory:/// lists 2 bytes"):
        save(CheckpointStore(store, "r"), tmp_path, 5)


def test_clean_up_that_fails_does_not_fail_the_commit(tmp_path: Path, notes: Notebook) -> None:
    store = MemoryStore()
    stale = checkpoint_prefix("r", 5, 1) + "of-another-rank.pt"
    store.put_bytes(stale, b"x")

    def refuse(operation: str, key: str) -> None:
        if (operation, key) == ("delete", stale) or (operation == "list" and manifest_key("r", 5, 1) in store.objects):
            raise StoreUnreachableError("gone")

    store.fault = refuse
    checkpoints = CheckpointStore(store, "r", notes)
    save(checkpoints, tmp_path, 5)
    assert notes.states() == {5: "committed"} and checkpoints.manifest(5, 1).step == 5


def test_a_committed_checkpoint_that_was_recorded_as_failed_is_corrected(
    checkpoints: CheckpointStore, notes: Notebook, tmp_path: Path
) -> None:
    save(checkpoints, tmp_path, 5)
    notes.checkpoint(checkpoints.row(5, 1, "failed", "The store was away."))
    checkpoints.record_committed()
    assert notes.states() == {5: "committed"}


def test_an_outdated_attempt_leaves_a_later_ones_checkpoint_alone(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    """As a pod on a lost node that still reaches the store."""
    outdated = LocalCheckpoint(5, local(tmp_path / "first", 5, size=7), 1, "d")
    later = LocalCheckpoint(5, local(tmp_path / "second", 5), 2, "d")
    checkpoints.commit(later)
    before = list(checkpoints.store.list("r/"))
    with pytest.raises(
        CheckpointError, match="Attempt 2 of the run r has committed checkpoints: attempt 1 is outdated"
    ):
        checkpoints.commit(outdated)
    assert list(checkpoints.store.list("r/")) == before
    checkpoints.verify(checkpoints.manifest(5))


def test_an_attempt_that_is_replaced_while_it_uploads_commits_nothing(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    outdated = LocalCheckpoint(5, local(tmp_path / "first", 5), 1, "d")
    later = LocalCheckpoint(4, local(tmp_path / "second", 4), 2, "d")

    def meanwhile(_step: int, _folder: Path) -> list[FileEntry]:
        checkpoints.commit(later)
        return []

    with pytest.raises(CheckpointError, match="attempt 1 is outdated"):
        checkpoints.commit(outdated, remote_files=meanwhile)
    assert checkpoints.steps() == [4]


def test_an_attempt_that_wakes_up_writes_beside_its_successors_checkpoint(
    checkpoints: CheckpointStore, notes: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: it was past every check when its node was lost, and goes on where it was."""
    before = CheckpointStore(checkpoints.store, "r", notes)
    monkeypatch.setattr(before, "_refuse_outdated", lambda _local: None)
    for step in (5, 6):
        checkpoints.commit(LocalCheckpoint(step, local(tmp_path / "second", step), 2, "d"))
    before.commit(LocalCheckpoint(5, local(tmp_path / "first", 5, size=7), 1, "d"))
    before.commit(LocalCheckpoint(40, local(tmp_path / "first", 40, size=7), 1, "d"))
    assert not before.retain(Retention(keep_last=1), attempt=1)
    for step in (5, 6):
        manifest = checkpoints.manifest(step)
        assert manifest.attempt == 2
        checkpoints.verify(manifest)


def test_what_a_later_attempt_has_replaced_is_removed_unless_it_is_pinned(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    for attempt in (1, 2):
        for step in (5, 10):
            folder = local(tmp_path / str(attempt), step)
            checkpoints.commit(LocalCheckpoint(step, folder, attempt, "d"))
    checkpoints.pin(5)
    assert checkpoints.retain(Retention(keep_last=2)) == []
    assert checkpoints.listing().committed == [(10, 2), (5, 2), (5, 1)]
    assert [(manifest.step, manifest.attempt) for manifest in checkpoints.manifests()] == [(10, 2), (5, 2)]


def test_a_step_of_an_earlier_attempt_stands_in_for_a_corrupt_one(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    for attempt in (1, 2):
        checkpoints.commit(LocalCheckpoint(5, local(tmp_path / str(attempt), 5), attempt, "d"))
    checkpoints.store.delete(checkpoint_prefix("r", 5, 2) + "actor/model.pt")
    found = checkpoints.restore_newest(tmp_path / "restored")
    assert found is not None and (found.step, found.attempt) == (5, 1)


def test_a_checkpoint_without_the_attempt_in_its_keys_is_one_as_any_other(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    """As versions before this wrote them: restored, replaced by a later attempt, marked as corrupt and removed."""
    for step in (5, 10):
        save(checkpoints, tmp_path, step)
        without_attempt(checkpoints, step)
    assert checkpoints.listing().committed == [(10, NO_ATTEMPT), (5, NO_ATTEMPT)]
    found = checkpoints.restore_newest(tmp_path / "restored")
    assert found is not None and (found.step, found.attempt) == (10, 1)
    checkpoints.mark_corrupt(found, "its ranks differ")
    assert checkpoints.steps() == [5]
    with pytest.raises(CheckpointError, match="Attempt 1 of the run r has committed"):
        checkpoints.commit(LocalCheckpoint(5, local(tmp_path / "zero", 5), 0, "d"))
    checkpoints.commit(LocalCheckpoint(5, local(tmp_path / "second", 5), 2, "d"))
    checkpoints.retain(Retention(keep_last=1), attempt=2)
    assert checkpoints.listing().committed == [(5, 2)]


def without_attempt(checkpoints: CheckpointStore, step: int, version: int = 3) -> None:
    """The checkpoint as this version of the manifest has it."""
    old = checkpoint_prefix("r", step, 1)
    for info in list(checkpoints.store.list(old)):
        data = checkpoints.store.get_bytes(info.key)
        if info.key.endswith("manifest.json"):
            data = json.dumps(json.loads(data) | {"version": version}).encode()
        checkpoints.store.put_bytes(checkpoint_prefix("r", step, NO_ATTEMPT) + info.key.removeprefix(old), data)
        checkpoints.store.delete(info.key)


def cut_after(count: int) -> Callable[[str, str], None]:
    """A store that goes away after `count` operations."""
    left = iter(range(count))

    def fault(_operation: str, _key: str) -> None:
        if next(left, None) is None:
            raise StoreError("gone")

    return fault


@pytest.mark.parametrize("count", range(14))
def test_wherever_an_upload_is_cut_the_one_before_stays(count: int, tmp_path: Path) -> None:
    store = MemoryStore()
    checkpoints = CheckpointStore(store, "r")
    save(checkpoints, tmp_path, 5)
    store.fault = cut_after(count)
    try:
        save(checkpoints, tmp_path, 10)
        checkpoints.retain(Retention(keep_last=1))
    except StoreError:
        pass
    store.fault = cut_after(1000)
    found = checkpoints.restore_newest(tmp_path / "restored")
    assert found is not None and found.step in (5, 10)
    checkpoints.restore(found, tmp_path / "restored")


@pytest.mark.parametrize("place", ["folder", "S3"])
def test_killed_while_committing(
    place: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "store").as_uri()
    if place == "S3":
        url, environment = request.getfixturevalue("s3")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
    store, delays = open_store(url), [0.0, 0.02, 0.05, 0.1, 0.15, 0.2]
    for turn, delay in enumerate(delays):
        arguments = [url, str(tmp_path / f"local-{turn}"), str(turn * 1000 + 1)]
        process = subprocess.Popen([sys.executable, str(COMMITTING), *arguments], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
        process.wait()
        process.stdout.close()
        notes = Notebook()
        found = CheckpointStore(store, "r", notes).restore_newest(tmp_path / "restored")
        assert (found.step if found else 0) >= max(told, default=0) and notes.events == []
    checkpoints = CheckpointStore(store, "r")
    checkpoints.sweep(grace_seconds=0)
    left = {key.split("/")[2] for key in (info.key for info in store.list(""))}
    shared = {"shared"} if checkpoints.steps() else set()
    assert left == {f"step-{step:06d}-attempt-1" for step in checkpoints.steps()} | shared


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_of_an_older_version_is_read(version: int, checkpoints: CheckpointStore, tmp_path: Path) -> None:
    """The first knew no shared files, and the second summed big files as a whole."""
    folder = local(tmp_path, 5, size=PART_BYTES + 1)
    big = (folder / "actor" / "model.pt").read_bytes()
    checkpoints.commit(LocalCheckpoint(5, folder, 1, "d"))

    def older(data: bytes) -> bytes:
        body = json.loads(data) | {"version": version}
        for entry in body["files"]:
            if entry.pop("part_bytes"):
                entry["sha256"] = hashlib.sha256(big).hexdigest()
            if version == 1:
                del entry["shared"]
        return json.dumps(body).encode()

    harm(checkpoints.store, 5, "manifest.json", older)
    without_attempt(checkpoints, 5, version)
    assert checkpoints.restore_newest(tmp_path / "first") is not None
    assert checkpoints.restore_newest(tmp_path / "second", caches=[tmp_path / "first"]) is not None
    first, second = (tmp_path / name / "actor" / "model.pt" for name in ("first", "second"))
    assert os.path.samefile(first, second) and second.read_bytes() == big


def test_files_of_other_machines_belong_to_the_checkpoint(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(checkpoints.store, "r")
    (tmp_path / "there" / "actor").mkdir(parents=True)
    (tmp_path / "there" / "actor" / "model_world_size_2_rank_1.pt").write_bytes(b"1")
    checkpoints.commit(
        LocalCheckpoint(5, local(tmp_path, 5), 1, "d"),
        remote_files=lambda step, _folder: other.put_files(step, tmp_path / "there", 1),
    )
    manifest = checkpoints.manifest(5)
    assert manifest.ranks == 2 and len(manifest.files) == 3
    checkpoints.verify(manifest)


@pytest.mark.parametrize("made", [False, True], ids=["absent", "empty"])
def test_a_local_folder_without_files_is_refused(made: bool, checkpoints: CheckpointStore, tmp_path: Path) -> None:
    if made:
        (tmp_path / "none").mkdir()
    with pytest.raises(CheckpointError, match="is empty or does not exist"):
        checkpoints.commit(LocalCheckpoint(5, tmp_path / "none", 1, "d"))
    assert checkpoints.steps() == []


def test_a_manifest_reads_as_it_was_written(checkpoints: CheckpointStore, tmp_path: Path) -> None:
    save(checkpoints, tmp_path, 5, acc=0.5)
    manifest = checkpoints.manifest(5)
    assert parse_manifest(manifest.to_bytes(), "key") == manifest
