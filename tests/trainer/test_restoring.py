"""What an attempt starts from: never the model by mistake, and from this disk what is on it already."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders import job
from store_fakes import MemoryStore, Notebook

from dapo_core.backoff import Backoff
from dapo_core.db import CheckpointRow
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.jobspec import DAPOJob
from dapo_core.objectstore import StoreUnreachableError
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.checkpoints.restore import Restored, restore, retry_unreachable

JOB = job()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def checkpoints(store: MemoryStore) -> CheckpointStore:
    return CheckpointStore(store, "r", Notebook())


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "r" / "attempt-2"
    made.mkdir(parents=True)
    return made


def saved(folder: Path, step: int, ranks: int = 1) -> Path:
    """What verl leaves of a step."""
    made = folder / f"global_step_{step}"
    (made / "actor" / "huggingface").mkdir(parents=True)
    for rank in range(ranks):
        name = f"model_world_size_{ranks}_rank_{rank}.pt"
        (made / "actor" / name).write_bytes(b"weights %d of %d" % (rank, step))
    (made / "actor" / "huggingface" / "config.json").write_text("{}")
    return made


def commit(checkpoints: CheckpointStore, folder: Path, step: int, ranks: int = 1, of: DAPOJob = JOB) -> None:
    checkpoints.commit(LocalCheckpoint(step, saved(folder, step, ranks), 1, of.spec.digest()))


def start(
    checkpoints: CheckpointStore, work: Path, known: Sequence[CheckpointRow] = (), attempt: int = 2, of: DAPOJob = JOB
) -> Restored | None:
    return restore(checkpoints, of, work, attempt, lambda: known)


def test_the_newest_checkpoint_is_restored_as_verl_names_it(
    checkpoints: CheckpointStore, work: Path, tmp_path: Path
) -> None:
    for step in (5, 10):
        commit(checkpoints, tmp_path / "local", step)
    found = start(checkpoints, work)
    assert found is not None and found.manifest.step == 10 and found.folder == work / "global_step_10"
    assert (found.folder / "actor" / "model_world_size_1_rank_0.pt").read_bytes() == b"weights 0 of 10"


def test_a_first_attempt_starts_from_the_model(checkpoints: CheckpointStore, work: Path) -> None:
    assert start(checkpoints, work, attempt=1) is None
    assert start(checkpoints, work, attempt=2) is None, "none was ever committed"


# Never from zero by mistake


def test_checkpoints_on_record_that_are_not_in_the_store_end_the_attempt(
    checkpoints: CheckpointStore, work: Path
) -> None:
    rows = [checkpoints.row(step, 1, "committed") for step in (5, 10)]
    with pytest.raises(
        CheckpointError, match=r"at step 10 is on record at memory:///r/.*, but memory:/// has none of the"
    ):
        start(checkpoints, work, rows)
    gone = [replace(row, state="deleted") for row in rows]
    assert start(checkpoints, work, gone) is None, "they were removed on purpose"


def test_a_record_that_cannot_be_read_lets_no_later_attempt_restart_from_zero(
    checkpoints: CheckpointStore, work: Path
) -> None:
    def known() -> Sequence[CheckpointRow]:
        raise StoreError("The database is down.")

    assert restore(checkpoints, JOB, work, 1, known) is None
    with pytest.raises(StoreError, match=r"could not determine whether one should exist: The database is down\."):
        restore(checkpoints, JOB, work, 2, known)


@pytest.mark.parametrize("operation", ["list", "put", "get"])
def test_a_store_that_fails_ends_the_attempt(
    operation: str, store: MemoryStore, checkpoints: CheckpointStore, work: Path, tmp_path: Path
) -> None:
    commit(checkpoints, tmp_path / "local", 5)

    def fault(asked: str, _key: str) -> None:
        if asked == operation:
            raise StoreError("The bucket is gone.")

    store.fault = fault
    with pytest.raises(StoreError, match="The bucket is gone"):
        start(checkpoints, work)


# Another number of ranks


@pytest.mark.parametrize("origin", [None, "other", "other@10"])
def test_a_checkpoint_of_another_number_of_ranks_is_restored_whole(
    origin: str | None, store: MemoryStore, checkpoints: CheckpointStore, work: Path, tmp_path: Path
) -> None:
    """The ranks read the rows that each is to hold from the files of those that saved them (resharding)."""
    commit(checkpoints if origin is None else CheckpointStore(store, "other"), tmp_path / "local", 10, ranks=4)
    found = start(checkpoints, work, of=job(checkpoints={"resumeFrom": origin}))
    assert found is not None and found.manifest.ranks == 4
    shards = sorted(path.name for path in (found.folder / "actor").glob("*.pt"))
    assert shards == [f"model_world_size_4_rank_{rank}.pt" for rank in range(4)]


# What is on this disk already


def test_what_an_earlier_attempt_left_is_not_fetched(
    store: MemoryStore, checkpoints: CheckpointStore, work: Path, tmp_path: Path
) -> None:
    left = work.parent / "attempt-1" / "checkpoints"
    commit(checkpoints, left, 10)
    inode = (left / "global_step_10" / "actor" / "model_world_size_1_rank_0.pt").stat().st_ino
    store.log.clear()
    found = start(checkpoints, work)
    assert found is not None
    model = found.folder / "actor" / "model_world_size_1_rank_0.pt"
    assert model.read_bytes() == b"weights 0 of 10" and model.stat().st_ino == inode
    assert not [key for operation, key in store.log if operation == "get" and not key.endswith("manifest.json")]
    assert not (left / "global_step_10").exists(), "the disk holds it once"


def test_a_changed_local_file_is_fetched(checkpoints: CheckpointStore, work: Path, tmp_path: Path) -> None:
    left = work.parent / "attempt-1"
    commit(checkpoints, left, 10)
    changed = left / "global_step_10" / "actor" / "model_world_size_1_rank_0.pt"
    changed.write_bytes(b"WEIGHTS 0 of 10")
    found = start(checkpoints, work)
    assert found is not None
    assert (found.folder / "actor" / changed.name).read_bytes() == b"weights 0 of 10"


def test_a_newer_local_checkpoint_that_was_never_stored_stays(
    checkpoints: CheckpointStore, work: Path, tmp_path: Path
) -> None:
    commit(checkpoints, tmp_path / "local", 10)
    newer = saved(work.parent / "attempt-1" / "checkpoints", 15)
    start(checkpoints, work)
    assert newer.exists(), "its event says where it is"


def test_what_had_arrived_when_an_attempt_ended_is_not_fetched_again(
    store: MemoryStore, checkpoints: CheckpointStore, work: Path, tmp_path: Path
) -> None:
    commit(checkpoints, tmp_path / "local", 10, ranks=2)
    whole, torn = (f"actor/model_world_size_2_rank_{rank}.pt" for rank in range(2))
    unfinished = work.parent / "attempt-1" / ".resume.part"
    (unfinished / "actor").mkdir(parents=True)
    (unfinished / whole).write_bytes(b"weights 0 of 10")
    (unfinished / torn).write_bytes(b"weights")
    store.log.clear()
    found = start(checkpoints, work)
    assert found is not None
    assert [(found.folder / name).read_bytes() for name in (whole, torn)] == [b"weights 0 of 10", b"weights 1 of 10"]
    fetched = [key for operation, key in store.log if operation == "get" and key.endswith(".pt")]
    assert len(fetched) == 1 and fetched[0].endswith(torn)
    assert not unfinished.exists(), "the disk holds it once"


# A store that comes back


def test_a_store_that_does_not_answer_is_waited_for() -> None:
    faults = iter([StoreUnreachableError("Nobody there."), StoreUnreachableError("Nobody there.")])
    reported: list[str] = []

    def work() -> int:
        if (error := next(faults, None)) is not None:
            raise error
        return os.getpid()

    assert retry_unreachable(work, reported.append, 60, Backoff(0.01, 0.01)) == os.getpid()
    assert reported == ["Nobody there. Retrying."] * 2


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        pytest.param(StoreUnreachableError("down"), 3, id="for a while only"),
        pytest.param(StoreError("no such bucket"), 1, id="what waiting does not fix fails at once"),
    ],
)
def test_patience_ends(error: StoreError, tries: int) -> None:
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        raise error

    with pytest.raises(StoreError):
        retry_unreachable(work, lambda _: None, 0.25, Backoff(0.1, 0.1))
    assert (count == 1) == (tries == 1)
