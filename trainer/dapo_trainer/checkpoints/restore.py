"""What an attempt starts from: its run's newest whole checkpoint, another run's, or the model; never by mistake."""

import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dapo_core.db import CheckpointRow
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec
from dapo_core.objectstore import StoreUnreachableError, probe
from dapo_core.run.backoff import Backoff
from dapo_core.run.checkpoint import Manifest
from dapo_trainer.checkpoints import resume_from
from dapo_trainer.checkpoints.store import CheckpointStore
from dapo_trainer.verl_config.placement import NODE_RESOURCE, node_resources

_SAVED: Final = re.compile(r"^global_step_(\d+)$")
# As long as a store may take to come back, as a pod of its own does; then the attempt ends, and its restart counts.
PATIENCE_SECONDS: Final = 300.0
BACKOFF: Final = Backoff(1.0, 30.0)
T = TypeVar("T")
Known = Callable[[], Sequence[CheckpointRow]]
"""The run's checkpoints on record. Raises StoreError when the record can not be read."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint on the local disk, in a folder as verl names it."""

    manifest: Manifest
    folder: Path
    store_url: str


def ranks(spec: DAPOJobSpec) -> int:
    """FSDP ranks of the job's trainer pods."""
    return node_resources(spec)[NODE_RESOURCE["trainer"]]


def patiently(
    work: Callable[[], T],
    tell: Callable[[str], None],
    limit_seconds: float = PATIENCE_SECONDS,
    backoff: Backoff = BACKOFF,
) -> T:
    """Do `work`, again while the store does not answer, for so long; then raises what it raised."""
    deadline, failures = time.monotonic() + limit_seconds, 0
    while True:
        try:
            return work()
        except StoreUnreachableError as error:
            failures += 1
            wait = backoff.delay(failures, random.random())
            if time.monotonic() + wait > deadline:
                raise
            tell(f"{error} It is tried again.")
            time.sleep(wait)


def restore(checkpoints: CheckpointStore, job: DAPOJob, work: Path, attempt: int, known: Known) -> Restored | None:
    """Bring what the attempt goes on from to `work`; None to start from the model.

    Raises StoreError when the store can not be read, CheckpointError when no checkpoint is whole or those on record
    are not in the store, SpecError when the job does not fit.
    """
    folder, caches = work / "resume", [path for path, _ in saved_before(work)]
    probe(checkpoints.store, f"{checkpoints.run_id}/")
    checkpoints.sweep()
    checkpoints.record()  # whoever committed the newest one may have died before it said so
    manifest = checkpoints.restore_newest(folder, job.spec.digest(), ranks(job.spec), caches)
    if manifest is None:
        refuse_lost(checkpoints, attempt, known)
        origin = job.spec.checkpoints.resume_from
        if origin is None:
            return None
        manifest, url = resume_from.restore(origin, checkpoints, folder, ranks(job.spec))
    else:
        url = checkpoints.store.url
        forget_before(work, manifest.step)
    named = folder.with_name(f"global_step_{manifest.step}")
    return Restored(manifest, folder.rename(named), url)


def refuse_lost(checkpoints: CheckpointStore, attempt: int, known: Known) -> None:
    """The store has no checkpoint: raise CheckpointError if there should be one, for the run must not begin anew."""
    try:
        committed = [row for row in known() if row.state == "committed"]
    except StoreError as error:
        if attempt == 1:
            return
        raise StoreError(
            f"{checkpoints.store.url} has no checkpoint of the run {checkpoints.run_id}, and whether there should be "
            f"one can not be told: {error}"
        ) from error
    if committed:
        newest = max(committed, key=lambda row: row.step)
        raise CheckpointError(
            f"The checkpoint of step {newest.step} is on record at {newest.uri}, but {checkpoints.store.url} has none "
            f"of the run {checkpoints.run_id}: correct checkpoints.uri or DAPO_STORE_URL, bring its objects back, or "
            "start a new run. This one does not begin anew."
        )


def saved_before(work: Path) -> Iterator[tuple[Path, int]]:
    """Checkpoints that earlier attempts of the run left on this disk, newest first, and their steps."""
    if not work.name.startswith("attempt-"):
        return
    found = [*work.parent.glob("attempt-*/global_step_*"), *work.parent.glob("attempt-*/checkpoints/global_step_*")]
    steps = [(path, int(match.group(1))) for path in found if (match := _SAVED.match(path.name))]
    yield from sorted(steps, key=lambda saved: saved[1], reverse=True)


def forget_before(work: Path, step: int) -> None:
    """Free the disk of what earlier attempts left that is no newer than what was restored."""
    for path, saved in saved_before(work):
        if saved <= step:
            shutil.rmtree(path, ignore_errors=True)
