"""Checkpoints in the object store: whole or absent, found, verified, restored, kept and removed.

A checkpoint is committed by its manifest, which is written after all of its files and removed before any of them.
What has no manifest is the rest of an upload that was torn, and is never resumed from. Files that do not change from
one checkpoint to the next (tokenizer, configuration) lie once, under their content, for all checkpoints of the run.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from dapo_core.db import CheckpointRow, CheckpointState, EventType
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.naming import checkpoint_prefix, checkpoints_prefix, condemned_key, manifest_key, shared_key
from dapo_core.objectstore import Content, ObjectInfo, ObjectNotFoundError, ObjectStore
from dapo_core.parallel import parallel
from dapo_core.run.checkpoint import FileEntry, Manifest, Retention, committed, judge, parse_manifest
from dapo_trainer.checkpoints.files import content_of, fetch, is_shared, local_files, verify
from dapo_trainer.checkpoints.fit import check_digest, check_ranks
from dapo_trainer.checkpoints.leftovers import Leftover, Listing, leftovers

log = logging.getLogger(__name__)

# Files at a time: the ends of some are hidden behind the middle of others. They give way to training by priority; more
# than there are processors only take longer out of the same ones.
UPLOAD_WORKERS: Final = min(4, len(os.sched_getaffinity(0)))
# Nothing trains while a checkpoint is restored.
RESTORE_WORKERS: Final = 4
SYNC_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 3600.0

T = TypeVar("T")


class Put(Protocol):
    """Does one write to the store; it may do it again until it succeeds."""

    def __call__(self, once: Callable[[], T]) -> T: ...


def at_once(once: Callable[[], T]) -> T:
    """A `Put` that tries once."""
    return once()


Elsewhere = Callable[[int, Path], Sequence[FileEntry]]
"""Has other machines put their files of the checkpoint of a step, which lie in a folder of the same path there."""


def nowhere(_step: int, _folder: Path) -> Sequence[FileEntry]:
    """All files are on this machine."""
    return ()


class Journal(Protocol):
    """Where news of checkpoints go: `dapo_trainer.spool.spool.Spool`."""

    def checkpoint(self, row: CheckpointRow) -> None: ...

    def event(self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None) -> None: ...

    def sync(self, timeout_seconds: float) -> bool: ...


class Silent:
    """A journal that nobody reads, for commands that only look."""

    def checkpoint(self, row: CheckpointRow) -> None: ...

    def event(self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None) -> None: ...

    def sync(self, timeout_seconds: float) -> bool:
        return True


class CheckpointStore:
    """The checkpoints of one run. Methods raise StoreError when the store fails, CheckpointError for a checkpoint."""

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        journal: Journal | None = None,
        mine: Callable[[FileEntry], bool] = lambda _: True,
    ) -> None:
        """`mine`: which files a restore brings to this machine; of the others it makes sure that they are there."""
        self.store = store
        self.run_id = run_id
        self.journal: Journal = journal or Silent()
        self.mine = mine
        self._shared: set[str] = set()  # keys of the shared files that this process has put

    def uri(self, step: int) -> str:
        """Where the checkpoint of `step` lies, for people and for `resumeFrom`."""
        return self.store.address(checkpoint_prefix(self.run_id, step).rstrip("/"))

    def steps(self) -> list[int]:
        """Steps that have a manifest, newest first."""
        return self.listing().committed

    def manifest(self, step: int) -> Manifest:
        """The manifest of `step`. Raises CheckpointError when it is absent, damaged or of another step."""
        key = manifest_key(self.run_id, step)
        try:
            manifest = parse_manifest(self.store.get_bytes(key), key)
        except ObjectNotFoundError as error:
            raise CheckpointError(
                f"There is no committed checkpoint of step {step} of the run {self.run_id}."
            ) from error
        if (manifest.run_id, manifest.step) != (self.run_id, step):
            raise CheckpointError(f"{key} is of step {manifest.step} of the run {manifest.run_id}.")
        return manifest

    def list(self) -> Sequence[Manifest]:
        """Committed checkpoints whose manifest can be read, newest first."""
        found = []
        for step in self.steps():
            try:
                found.append(self.manifest(step))
            except CheckpointError as error:
                log.warning("%s", error)
        return committed(found)

    # Writing

    def commit(
        self,
        step: int,
        folder: Path,
        *,
        attempt: int,
        spec_digest: str,
        metrics: Mapping[str, float] | None = None,
        give: bool = False,
        put: Put = at_once,
        elsewhere: Elsewhere = nowhere,
    ) -> Manifest:
        """Store `folder` as the checkpoint of `step`: files, then the manifest, then the record of it.

        `give`: nobody writes to the folder's files any more, so that a folder store may link them. Every single
        write to the store goes through `put`, which may repeat it. `elsewhere` has the files that lie on other
        machines put by them (`put_files`) and tells which they are. Raises StoreError, or CheckpointError when the
        folder itself can not be read.
        """
        # A step that is done again replaces what an earlier attempt left there: uncommit it first.
        put(lambda: self.store.delete(manifest_key(self.run_id, step)))
        here = self.put_files(step, folder, give=give, put=put)
        files = tuple({entry.path: entry for entry in (*put(lambda: elsewhere(step, folder)), *here)}.values())
        # A resume begins after this step: its metrics have to be safe before it may be resumed from.
        self.journal.sync(SYNC_SECONDS)
        manifest = Manifest(self.run_id, step, attempt, spec_digest, time.time(), files, dict(metrics or {}))
        data = manifest.to_bytes()
        put(lambda: self.store.put_bytes(manifest_key(self.run_id, step), data))
        self.journal.checkpoint(manifest.row(self.uri(step)))
        self._remove_strangers(manifest)
        return manifest

    def put_files(self, step: int, folder: Path, *, give: bool = False, put: Put = at_once) -> tuple[FileEntry, ...]:
        """Store the files of `folder` as those of the checkpoint of `step`, which no manifest names yet."""
        paths = local_files(folder)
        there = put(self.listing).shared

        def store_file(path: Path) -> FileEntry:
            name = path.relative_to(folder).as_posix()
            shared = is_shared(path)
            key = checkpoint_prefix(self.run_id, step) + name
            content = self._put_shared(path, there, put) if shared else put(partial(self._put, key, path, give))
            return FileEntry(name, content.size, content.sha256, shared, content.part_bytes)

        return tuple(parallel(store_file, paths, UPLOAD_WORKERS))

    def _put(self, key: str, path: Path, give: bool) -> Content:
        return self.store.put_file(key, path, give=give)

    def _put_shared(self, path: Path, there: Mapping[str, ObjectInfo], put: Put) -> Content:
        """Put a shared file unless this process has, and it still stands there whole.

        What an earlier process put is put again, once: a damaged one would damage every checkpoint after it.
        """
        content = content_of(path)
        key = shared_key(self.run_id, content.sha256)
        if key not in self._shared or key not in there or there[key].size != content.size:
            if put(partial(self._put, key, path, False)) != content:
                raise CheckpointError(f"The checkpoint file {path} was changed while it was stored.")
            self._shared.add(key)
        return content

    def _remove_strangers(self, manifest: Manifest) -> None:
        """Files that an earlier, torn upload of the step left between those of this one."""
        known = {manifest.key(entry) for entry in manifest.files} | {manifest_key(self.run_id, manifest.step)}
        for key in self.listing().steps.get(manifest.step, {}).keys() - known:
            self.store.delete(key)

    # Reading

    def verify(self, manifest: Manifest) -> None:
        """Read all of a checkpoint. Raises CheckpointError, naming the file, when it is not what was stored."""
        parallel(partial(verify, self.store, manifest), manifest.files, RESTORE_WORKERS)

    def pick(self) -> Manifest | None:
        """The newest committed checkpoint that is whole; None when the run has none at all.

        A damaged newer one is passed over with an event. Raises CheckpointError when all are damaged: a run must
        not silently begin anew.
        """
        return self._first_that(self.verify)

    def restore(self, manifest: Manifest, into: Path, caches: Sequence[Path] = ()) -> None:
        """Bring the files of a manifest to the folder `into`, which is there in whole or not at all; sums are verified.

        Files that one of the folders `caches` has unchanged are taken from there. Raises CheckpointError when it is
        damaged, StoreError when the store or the local disk fails.
        """
        part = into.with_name(f".{into.name}.part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            bring = partial(fetch, self.store, manifest, folder=part, caches=caches)
            parallel(bring, [entry for entry in manifest.files if self.mine(entry)], RESTORE_WORKERS)
            self._look_at([entry for entry in manifest.files if not self.mine(entry)], manifest)
            if into.exists():
                shutil.rmtree(into)
            part.rename(into)
        except OSError as error:
            raise StoreError(f"The checkpoint can not be written to {into}: {error.strerror}.") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _look_at(self, entries: Sequence[FileEntry], manifest: Manifest) -> None:
        """Raises CheckpointError unless files that others will bring are there, of their size."""
        there = {info.key: info.size for info in self.store.list(checkpoints_prefix(self.run_id))} if entries else {}
        for entry in entries:
            if there.get(manifest.key(entry)) != entry.size:
                raise CheckpointError(f"The checkpoint of step {manifest.step} is damaged: {entry.path} is not whole.")

    def restore_newest(
        self, into: Path, spec_digest: str | None = None, ranks: int | None = None, caches: Sequence[Path] = ()
    ) -> Manifest | None:
        """Restore what `pick` would pick, reading it only once. None when the run has no checkpoint.

        Raises CheckpointError also when it was written by a job whose digest is not `spec_digest`, and SpecError when
        it was written by another number of FSDP ranks than `ranks`; nothing is read of such a one but its manifest.
        """

        def restore(manifest: Manifest) -> None:
            if spec_digest in (None, manifest.spec_digest) and ranks in (None, manifest.ranks or ranks):
                self.restore(manifest, into, caches)

        found = self._first_that(restore)
        if found is not None:
            check_digest(found, spec_digest)
            check_ranks(found, ranks)
        return found

    def _first_that(self, holds: Callable[[Manifest], None]) -> Manifest | None:
        listing = self.listing()
        problems = [f"That of step {step} proved damaged." for step in listing.condemned]
        for step in listing.committed:
            try:
                manifest = self.manifest(step)
                holds(manifest)
            except CheckpointError as error:
                problems.append(str(error))
                self._tell_damaged(step, str(error))
                continue
            return manifest
        if problems:
            raise CheckpointError("No checkpoint of this run is whole: " + " ".join(problems))
        return None

    def condemn(self, manifest: Manifest, why: str) -> None:
        """Uncommit a checkpoint of this run that proved damaged after it was restored, so that nobody picks it again.

        Its manifest stays beside its files, under a name that commits nothing: a run that had a checkpoint must not
        begin anew.
        """
        if manifest.run_id == self.run_id:
            self.store.put_bytes(condemned_key(self.run_id, manifest.step), manifest.to_bytes())
            self.store.delete(manifest_key(self.run_id, manifest.step))
            self._tell_damaged(manifest.step, why)

    def _tell_damaged(self, step: int, why: str) -> None:
        self.journal.checkpoint(self.row(step, 0, "failed", why))
        self.journal.event("CheckpointDamaged", f"{why} The one before is tried.", type="Warning", step=step)

    # Keeping

    def record(self) -> None:
        """Tell the journal of all committed checkpoints: whoever committed one may have died before it told."""
        for manifest in self.list():
            self.journal.checkpoint(manifest.row(self.uri(manifest.step)))

    def retain(self, retention: Retention) -> Sequence[int]:
        """Remove the checkpoints that `retention` does not keep; their steps. Every decision is recorded."""
        manifests = {manifest.step: manifest for manifest in self.list()}
        removed = []
        for verdict in judge(retention, {step: manifest.metrics for step, manifest in manifests.items()}):
            row = replace(manifests[verdict.step].row(self.uri(verdict.step), verdict.why), updated_at=time.time())
            if verdict.keep:
                self.journal.checkpoint(row)
            else:
                self.journal.checkpoint(replace(row, state="deleting"))
                self.remove(verdict.step)
                self.journal.checkpoint(replace(row, state="deleted", updated_at=time.time()))
                removed.append(verdict.step)
        return removed

    def remove(self, step: int) -> None:
        """Remove the objects of `step`, its manifest first: what is left of a removal that was cut off is swept."""
        self.store.delete(manifest_key(self.run_id, step))
        for info in list(self.store.list(checkpoint_prefix(self.run_id, step))):
            self.store.delete(info.key)

    def sweep(self, grace_seconds: float = GRACE_SECONDS, busy: Iterable[int] = ()) -> Sequence[int]:
        """Remove what no checkpoint needs and nothing was added to for `grace_seconds`; steps of torn uploads.

        `busy` are steps that are being uploaded now.
        """
        self.store.sweep_incomplete(checkpoints_prefix(self.run_id), grace_seconds)
        swept = []
        for leftover in self.leftovers(grace_seconds, busy):
            self.drop(leftover)
            swept += [leftover.step] if leftover.step is not None else []
        return swept

    def drop(self, leftover: Leftover) -> None:
        """Remove what no checkpoint needs."""
        for key in leftover.keys:
            self.store.delete(key)
        if leftover.kind == "TornUpload" and leftover.step is not None:
            step = leftover.step
            self.journal.checkpoint(self.row(step, 0, "deleted", "Removed: its upload never ended."))
            self.journal.event("CheckpointSwept", f"The torn upload of step {step} was removed.", step=step)

    def leftovers(self, grace_seconds: float = GRACE_SECONDS, busy: Iterable[int] = ()) -> Sequence[Leftover]:
        """What a sweep would remove."""
        return leftovers(self.listing(), self.manifest, time.time() - grace_seconds, list(busy))

    def row(self, step: int, attempt: int, state: CheckpointState, decision: str | None = None) -> CheckpointRow:
        """A row of a checkpoint that has no manifest."""
        return CheckpointRow(self.run_id, step, attempt, state, self.uri(step), time.time(), decision=decision)

    def listing(self) -> Listing:
        """All that lies under the run's checkpoints."""
        return Listing.of(self.run_id, self.store.list(checkpoints_prefix(self.run_id)))
