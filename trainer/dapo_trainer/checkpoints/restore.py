"""What an attempt starts from: its run's newest intact checkpoint, another run's, or the model; never by mistake."""

import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from dapo_core.backoff import Backoff
from dapo_core.db import CheckpointRow
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.jobspec import DAPOJob
from dapo_core.objectstore import StoreUnreachableError, open_store, probe
from dapo_core.run.checkpoint import Manifest
from dapo_trainer.checkpoints.checkpoint_files import staged
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.checkpoints.fetching import WeightsArrived, remove_weights

_SAVED: Final = re.compile(r"^global_step_(\d+)$")
_URI: Final = re.compile(
    r"^(?P<root>[a-z0-9]+://[^?]*)/(?P<run>[^/?]+)/checkpoints/step-(?P<step>\d+)"
    r"(?:-attempt-(?P<attempt>\d+))?/?(?P<query>\?.*)?$"
)
# As long as a store may take to come back, for example in a new pod; then the attempt ends, and its restart counts.
STORE_TIMEOUT_SECONDS: Final = 300.0
BACKOFF: Final = Backoff(1.0, 30.0)
T = TypeVar("T")
_FOLDER: Final = "resume"
RecordedCheckpoints = Callable[[], Sequence[CheckpointRow]]
"""The run's checkpoints on record. Raises StoreError when the metadata store cannot be read."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint, and where it is or will be on the local disk: in a folder with verl's name for it."""

    manifest: Manifest
    folder: Path
    store_url: str
    weights: Path | None = field(default=None, compare=False)
    """Where the files are that ranks load first, while others are still arriving."""


Report = Callable[[str], None]
"""Called with a sentence about what is waited for."""
Found = Callable[[Restored], None]
"""Called with a checkpoint that fits the job, before its files are fetched; again when its weights have arrived, and
with an older one if a file is corrupt."""


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
    report: Report,
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
    checkpoints: CheckpointStore,
    job: DAPOJob,
    work: Path,
    attempt: int,
    recorded: RecordedCheckpoints,
    found: Found = lambda _: None,
) -> Restored | None:
    """Restore the checkpoint that the attempt continues from to `work`; None to start from the model.

    The number of FSDP ranks may be another one: each rank reads its rows (`verl_adapter.resharding`). Raises StoreError
    when the store cannot be read, CheckpointError when no checkpoint is intact, when those on record are not in the
    store, or when it is of a job with a different model, data or algorithm.
    """
    folder, unfinished = work / _FOLDER, _unfinished_by_earlier_attempts(work)
    caches = [*(path for path, _ in _saved_by_earlier_attempts(work)), *unfinished]
    probe(checkpoints.store, f"{checkpoints.run_id}/")
    checkpoints.sweep()
    checkpoints.record_committed()  # who committed the newest one may have died before recording it
    digest, origin = job.spec.digest(), checkpoints.store.url

    def tell(manifest: Manifest, url: str) -> None:
        nonlocal origin
        origin = url
        found(Restored(manifest, _named(folder, manifest), url))

    def tell_weights(manifest: Manifest, weights: Path) -> None:
        found(Restored(manifest, _named(folder, manifest), origin, weights))

    def check(newest: Manifest) -> None:
        check_fit(newest, digest)
        tell(newest, checkpoints.store.url)

    manifest = checkpoints.restore_newest(folder, caches, check, tell_weights)
    if manifest is None:
        _refuse_lost(checkpoints, attempt, recorded)
        reference = job.spec.checkpoints.resume_from
        if reference is None:
            return None
        manifest, url = restore_reference(reference, checkpoints, folder, tell, tell_weights)
    else:
        url = checkpoints.store.url
        _remove_saved_until(manifest.step, work)
    for path in unfinished:
        shutil.rmtree(path, ignore_errors=True)
    for earlier in work.parent.glob("attempt-*") if _is_attempt(work) else ():
        if earlier != work:
            remove_weights(earlier)
    return Restored(manifest, folder.rename(_named(folder, manifest)), url)


def _named(folder: Path, manifest: Manifest) -> Path:
    return folder.with_name(f"global_step_{manifest.step}")


def restore_reference(
    reference: str,
    own: CheckpointStore,
    into: Path,
    found: Callable[[Manifest, str], None] = lambda *_: None,
    weights: WeightsArrived | None = None,
) -> tuple[Manifest, str]:
    """Restore the checkpoint of any run to `into`, verified. Returns its manifest and the URL of its store, which
    `found` is called with before its files are fetched.

    Raises CheckpointError when there is none.
    """
    source = parse_reference(reference)
    store = own.store if source.root is None else open_store(source.root)
    checkpoints = CheckpointStore(store, source.run_id, is_local=own.is_local)
    if source.step is not None:
        manifest = checkpoints.manifest(source.step, source.attempt)
        found(manifest, store.url)
        checkpoints.restore(manifest, into, weights=weights)
        return manifest, store.url
    newest = checkpoints.restore_newest(into, check=lambda manifest: found(manifest, store.url), weights=weights)
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
    if not _is_attempt(work):
        return
    folders = [*work.parent.glob("attempt-*/global_step_*"), *work.parent.glob("attempt-*/checkpoints/global_step_*")]
    steps = [(path, int(match.group(1))) for path in folders if (match := _SAVED.match(path.name))]
    yield from sorted(steps, key=lambda saved: saved[1], reverse=True)


def _unfinished_by_earlier_attempts(work: Path) -> Sequence[Path]:
    """What earlier attempts of the run had fetched when they ended before all of it had arrived."""
    return sorted(work.parent.glob(f"attempt-*/{staged(Path(_FOLDER)).name}")) if _is_attempt(work) else []


def _is_attempt(work: Path) -> bool:
    """Whether the folders of earlier attempts are beside it."""
    return work.name.startswith("attempt-")


def _remove_saved_until(step: int, work: Path) -> None:
    """Free the disk of checkpoints of earlier attempts that are not newer than the restored one."""
    for path, saved in _saved_by_earlier_attempts(work):
        if saved <= step:
            shutil.rmtree(path, ignore_errors=True)
