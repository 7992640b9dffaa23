"""What an attempt starts from: its run's newest intact checkpoint, another run's, or the model; never by mistake."""

import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dapo_core.backoff import Backoff
from dapo_core.db import CheckpointRow
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.jobspec import DAPOJob
from dapo_core.objectstore import StoreUnreachableError, open_store, probe
from dapo_core.run.checkpoint import Manifest
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore

_SAVED: Final = re.compile(r"^global_step_(\d+)$")
_URI: Final = re.compile(
    r"^(?P<root>[a-z0-9]+://[^?]*)/(?P<run>[^/?]+)/checkpoints/step-(?P<step>\d+)"
    r"(?:-attempt-(?P<attempt>\d+))?/?(?P<query>\?.*)?$"
)
# As long as a store may take to come back, for example in a new pod; then the attempt ends, and its restart counts.
STORE_TIMEOUT_SECONDS: Final = 300.0
BACKOFF: Final = Backoff(1.0, 30.0)
T = TypeVar("T")
RecordedCheckpoints = Callable[[], Sequence[CheckpointRow]]
"""The run's checkpoints on record. Raises StoreError when the metadata store cannot be read."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint on the local disk, in a folder with verl's name for it."""

    manifest: Manifest
    folder: Path
    store_url: str


@dataclass(frozen=True)
class CheckpointReference:
    """A checkpoint of any run. `root`: the store's URL, None for the run's own store; `step`: None for the newest;
    `attempt`: None for the highest that has committed the step."""

    run_id: str
    step: int | None
    root: str | None = None
    attempt: int | None = None


def parse_reference(reference: str) -> CheckpointReference:
    """A checkpoint's URI (as `dapo show` prints it), `run-id`, or `run-id@step`. Raises CheckpointError."""
    if "://" not in reference:
        run_id, _, step = reference.partition("@")
        return CheckpointReference(run_id, int(step) if step else None)
    match = _URI.match(reference)
    if match is None:
        raise CheckpointError(
            f"spec.checkpoints.resumeFrom is {reference}, which is not a checkpoint's URI: "
            "use .../RUN/checkpoints/step-N."
        )
    # What follows the question mark says where the server is, and belongs to the store.
    attempt = None if match["attempt"] is None else int(match["attempt"])
    return CheckpointReference(match["run"], int(match["step"]), match["root"] + (match["query"] or ""), attempt)


def retry_unreachable(
    work: Callable[[], T],
    report: Callable[[str], None],
    timeout_seconds: float = STORE_TIMEOUT_SECONDS,
    backoff: Backoff = BACKOFF,
) -> T:
    """Do `work`, and repeat it while the store is unreachable. Raises what `work` raised, after `timeout_seconds`."""
    deadline, failures = time.monotonic() + timeout_seconds, 0
    while True:
        try:
            return work()
        except StoreUnreachableError as error:
            failures += 1
            wait = backoff.delay(failures, random.random())
            if time.monotonic() + wait > deadline:
                raise
            report(f"{error} Retrying.")
            time.sleep(wait)


def restore(
    checkpoints: CheckpointStore, job: DAPOJob, work: Path, attempt: int, recorded: RecordedCheckpoints
) -> Restored | None:
    """Restore the checkpoint that the attempt continues from to `work`; None to start from the model.

    The number of FSDP ranks may be another one: each rank reads its rows (`verl_adapter.resharding`). Raises StoreError
    when the store cannot be read, CheckpointError when no checkpoint is intact, when those on record are not in the
    store, or when it is of a job with a different model, data or algorithm.
    """
    folder, caches = work / "resume", [path for path, _ in _saved_by_earlier_attempts(work)]
    probe(checkpoints.store, f"{checkpoints.run_id}/")
    checkpoints.sweep()
    checkpoints.record_committed()  # who committed the newest one may have died before recording it
    digest = job.spec.digest()
    manifest = checkpoints.restore_newest(folder, caches, lambda newest: check_fit(newest, digest))
    if manifest is None:
        _refuse_lost(checkpoints, attempt, recorded)
        reference = job.spec.checkpoints.resume_from
        if reference is None:
            return None
        manifest, url = restore_reference(reference, checkpoints, folder)
    else:
        url = checkpoints.store.url
        _remove_saved_until(manifest.step, work)
    named = folder.with_name(f"global_step_{manifest.step}")
    return Restored(manifest, folder.rename(named), url)


def restore_reference(reference: str, own: CheckpointStore, into: Path) -> tuple[Manifest, str]:
    """Restore the checkpoint of any run to `into`, verified. Returns its manifest and the URL of its store.

    Raises CheckpointError when there is none.
    """
    source = parse_reference(reference)
    store = own.store if source.root is None else open_store(source.root)
    checkpoints = CheckpointStore(store, source.run_id, is_local=own.is_local)
    if source.step is not None:
        manifest = checkpoints.manifest(source.step, source.attempt)
        checkpoints.restore(manifest, into)
        return manifest, store.url
    newest = checkpoints.restore_newest(into)
    if newest is None:
        raise CheckpointError(f"spec.checkpoints.resumeFrom is {reference}, but that run has no checkpoint.")
    return newest, store.url


def check_fit(manifest: Manifest, spec_digest: str) -> None:
    """Raises CheckpointError when the checkpoint is of a job with a different model, data or algorithm."""
    if spec_digest != manifest.spec_digest:
        raise CheckpointError(
            f"The checkpoint at step {manifest.step} was saved by a different job (digest {manifest.spec_digest[:12]}, "
            f"now {spec_digest[:12]}): undo the change of the model, data or algorithm, or start a new run."
        )


def _refuse_lost(checkpoints: CheckpointStore, attempt: int, recorded: RecordedCheckpoints) -> None:
    """The store has no checkpoint. Raises CheckpointError if it should: the run must not restart from step 0."""
    try:
        committed = [row for row in recorded() if row.state == "committed"]
    except StoreError as error:
        if attempt == 1:
            return
        raise StoreError(
            f"{checkpoints.store.url} has no checkpoint of the run {checkpoints.run_id}, and could not determine "
            f"whether one should exist: {error}"
        ) from error
    if committed:
        newest = max(committed, key=lambda row: row.step)
        raise CheckpointError(
            f"The checkpoint at step {newest.step} is on record at {newest.uri}, but {checkpoints.store.url} has none "
            f"of the run {checkpoints.run_id}: correct checkpoints.uri or DAPO_STORE_URL, restore its objects, or "
            "start a new run. Refusing to restart from step 0."
        )


def _saved_by_earlier_attempts(work: Path) -> Iterator[tuple[Path, int]]:
    """Checkpoints that earlier attempts of the run left on this disk, newest first, and their steps."""
    if not work.name.startswith("attempt-"):
        return
    folders = [*work.parent.glob("attempt-*/global_step_*"), *work.parent.glob("attempt-*/checkpoints/global_step_*")]
    steps = [(path, int(match.group(1))) for path in folders if (match := _SAVED.match(path.name))]
    yield from sorted(steps, key=lambda saved: saved[1], reverse=True)


def _remove_saved_until(step: int, work: Path) -> None:
    """Free the disk of checkpoints of earlier attempts that are not newer than the restored one."""
    for path, saved in _saved_by_earlier_attempts(work):
        if saved <= step:
            shutil.rmtree(path, ignore_errors=True)
