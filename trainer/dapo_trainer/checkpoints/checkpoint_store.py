"""Checkpoints in the object store: committed, found, verified, restored, retained and removed.

A checkpoint is committed by its manifest, which is written after all of its files and removed before any of them.
Files without a manifest are left from an incomplete upload, and never resumed from. Files that do not change from one
checkpoint to the next (tokenizer, configuration) are stored once for all checkpoints of the run, under their checksum.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from dapo_core.db import CheckpointRow, CheckpointState
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.naming import (
    checkpoint_prefix,
    checkpoints_prefix,
    corrupt_key,
    manifest_key,
    parse_step_folder,
    pin_key,
    pins_prefix,
    shared_key,
)
from dapo_core.objectstore import Content, ObjectInfo, ObjectStore, StoreUnreachableError
from dapo_core.parallel import parallel
from dapo_core.run.checkpoint import FileEntry, Manifest, Retention, judge
from dapo_trainer.checkpoints.checkpoint_files import content_of, corrupt, is_shared, local_files, staged, verify
from dapo_trainer.checkpoints.fetching import RESTORE_WORKERS, WeightsArrived, fetch_files
from dapo_trainer.checkpoints.journal import Journal, NullJournal
from dapo_trainer.checkpoints.stored_checkpoints import CheckpointId, Leftover, Listing, StoredCheckpoints, leftovers

log = logging.getLogger(__name__)

# Files at a time: waiting at the end of one overlaps with the transfer of others. The threads run at a lower priority
# than training; more of them than CPUs would not be faster.
UPLOAD_WORKERS: Final = min(4, len(os.sched_getaffinity(0)))
SYNC_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 3600.0

T = TypeVar("T")


@dataclass(frozen=True)
class LocalCheckpoint:
    """A checkpoint that training has written to a local folder."""

    step: int
    folder: Path
    attempt: int
    spec_digest: str
    metrics: Mapping[str, float] = field(default_factory=dict)


class Retry(Protocol):
    """Runs one write to the store, and may repeat it until it succeeds."""

    def __call__(self, write: Callable[[], T]) -> T: ...


def no_retry(write: Callable[[], T]) -> T:
    """A `Retry` that tries once."""
    return write()


RemoteFiles = Callable[[int, Path], Sequence[FileEntry]]
"""Makes other pods store their files of a step's checkpoint, which are in a folder of the same path there."""


def no_remote_files(_step: int, _folder: Path) -> Sequence[FileEntry]:
    """All files are on this machine."""
    return ()


class CheckpointStore(StoredCheckpoints):
    """The checkpoints of one run, to write, restore and remove. Methods raise StoreError when the store fails,
    CheckpointError for a checkpoint."""

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        journal: Journal | None = None,
        is_local: Callable[[FileEntry], bool] = lambda _: True,
        secure_metrics: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_local`: which files a restore brings to this machine; of the others it checks that they exist.
        `secure_metrics`, called before each commit, makes what the journal holds outlive this machine."""
        super().__init__(store, run_id)
        self.journal: Journal = journal or NullJournal()
        self.is_local = is_local
        self._secure_metrics = secure_metrics
        self._shared: set[str] = set()  # keys of the shared files that this process has stored

    # Writing

    def commit(
        self,
        local: LocalCheckpoint,
        *,
        give: bool = False,
        retry: Retry = no_retry,
        remote_files: RemoteFiles = no_remote_files,
    ) -> Manifest:
        """Store a local checkpoint: its files, then the manifest, then a record in the journal.

        `give`: nobody writes to the folder's files any more, so that a folder store may link them. Every single write
        to the store goes through `retry`. `remote_files` makes other pods store their files (`put_files`). Raises
        StoreError, or CheckpointError when the local folder cannot be read.
        """
        step, key = local.step, manifest_key(self.run_id, local.step, local.attempt)
        retry(lambda: self._refuse_outdated(local))
        # Should this attempt have stored the step before, uncommit that first.
        retry(lambda: self.store.delete(key))
        files, stale = retry(lambda: self._store_all(local, give, retry, remote_files))
        # A resume continues after this step: its metrics have to be safe before it may be resumed from.
        self.journal.sync(SYNC_SECONDS)
        retry(self._secure_metrics)
        manifest = Manifest(
            self.run_id, step, local.attempt, local.spec_digest, time.time(), files, dict(local.metrics)
        )
        data = manifest.to_bytes()
        retry(lambda: self._refuse_outdated(local))
        retry(lambda: self.store.put_bytes(key, data))
        self.journal.checkpoint(manifest.row(self.uri_of(manifest)))
        self._remove_stale_files(stale)
        return manifest

    def _refuse_outdated(self, local: LocalCheckpoint) -> None:
        """Raises CheckpointError if a later attempt has committed a checkpoint: a pod on a node that the cluster has
        lost may still reach the store, and its checkpoints are not those of the run any more."""
        newest = self.newest_attempt()
        if newest > local.attempt:
            raise CheckpointError(
                f"Attempt {newest} of the run {self.run_id} has committed checkpoints: attempt {local.attempt} is "
                f"outdated, and its checkpoint at step {local.step} is discarded."
            )

    def _store_all(
        self, local: LocalCheckpoint, give: bool, retry: Retry, remote_files: RemoteFiles
    ) -> tuple[tuple[FileEntry, ...], set[str]]:
        """Store the files here and on other pods. Returns them, and the keys that an earlier upload of the step left.

        Raises StoreUnreachableError unless the store lists each of them at its size: a server that reports success is
        not believed, because retention removes older checkpoints on the strength of this one.
        """
        step, name = local.step, CheckpointId(local.step, local.attempt)
        here = self.put_files(step, local.folder, local.attempt, give=give, retry=retry)
        remote = retry(lambda: remote_files(step, local.folder))
        files = tuple({entry.path: entry for entry in (*remote, *here)}.values())
        listing = retry(self.listing)
        listed = listing.checkpoints.get(name, {})
        stored = listing.shared | listed
        keys = {entry.path: entry.key(self.run_id, *name) for entry in files}
        for entry in files:
            info = stored.get(keys[entry.path])
            if info is None or info.size != entry.size:
                self._shared.discard(keys[entry.path])
                size = "does not list it" if info is None else f"lists {info.size} bytes"
                raise StoreUnreachableError(
                    f"{entry.path} of the checkpoint at step {step} was stored with {entry.size} bytes, but "
                    f"{self.store.url} {size}."
                )
        return files, listed.keys() - {*keys.values(), manifest_key(self.run_id, *name)}

    def put_files(
        self, step: int, folder: Path, attempt: int, *, give: bool = False, retry: Retry = no_retry
    ) -> tuple[FileEntry, ...]:
        """Store the files of `folder` for the attempt's checkpoint at `step`, without a manifest that refers to
        them."""
        paths = local_files(folder)
        stored = retry(self.listing).shared

        def store_file(path: Path) -> FileEntry:
            name = path.relative_to(folder).as_posix()
            shared = is_shared(path)
            key = checkpoint_prefix(self.run_id, step, attempt) + name
            content = self._put_shared(path, stored, retry) if shared else retry(partial(self._put, key, path, give))
            return FileEntry(name, content.size, content.sha256, shared, content.part_bytes)

        return tuple(parallel(store_file, paths, UPLOAD_WORKERS))

    def _put(self, key: str, path: Path, give: bool) -> Content:
        return self.store.put_file(key, path, give=give)

    def _put_shared(self, path: Path, stored: Mapping[str, ObjectInfo], retry: Retry) -> Content:
        """Store a shared file unless this process has stored it, and it is still there with its size.

        What an earlier process stored is stored again, once: a corrupt file would corrupt every checkpoint after it.
        """
        content = content_of(path)
        key = shared_key(self.run_id, content.sha256)
        if key not in self._shared or key not in stored or stored[key].size != content.size:
            if retry(partial(self._put, key, path, False)) != content:
                raise CheckpointError(f"The checkpoint file {path} was changed while it was being stored.")
            self._shared.add(key)
        return content

    def _remove_stale_files(self, keys: Iterable[str]) -> None:
        """Remove files that an earlier, incomplete upload of the same step left among those of this one.

        The checkpoint is committed: what cannot be removed is removed with it, and fails nothing.
        """
        try:
            for key in keys:
                self.store.delete(key)
        except StoreError as error:
            log.warning("Cannot remove what an incomplete upload left: %s", error)

    # Reading

    def verify(self, manifest: Manifest) -> None:
        """Read a checkpoint to its last byte. Raises CheckpointError, naming a file that is missing or corrupt."""
        parallel(partial(verify, self.store, manifest), manifest.files, RESTORE_WORKERS)

    def restore(
        self, manifest: Manifest, into: Path, caches: Sequence[Path] = (), weights: WeightsArrived | None = None
    ) -> None:
        """Write the files of a manifest to the folder `into`, verified; after an error there is no such folder.

        Files that one of the folders `caches` has unchanged are taken from there; `weights` hears of those that ranks
        load first. Raises CheckpointError when the checkpoint is corrupt, StoreError when the store or the disk fails.
        """
        part, here = staged(into), [entry for entry in manifest.files if self.is_local(entry)]
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            fetch_files(self.store, manifest, here, part, caches, weights)
            self._check_exist([entry for entry in manifest.files if not self.is_local(entry)], manifest)
            if into.exists():
                shutil.rmtree(into)
            part.rename(into)
        except OSError as error:
            raise StoreError(f"The checkpoint cannot be written to {into}: {error.strerror}.") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _check_exist(self, entries: Sequence[FileEntry], manifest: Manifest) -> None:
        """Raises CheckpointError unless the files that other pods will fetch are in the store, with their size."""
        sizes = {info.key: info.size for info in self.store.list(checkpoints_prefix(self.run_id))} if entries else {}
        for entry in entries:
            if sizes.get(manifest.key(entry)) != entry.size:
                raise corrupt(manifest, f"{entry.path} is incomplete")

    def restore_newest(
        self,
        into: Path,
        caches: Sequence[Path] = (),
        check: Callable[[Manifest], None] = lambda _: None,
        weights: WeightsArrived | None = None,
    ) -> Manifest | None:
        """Restore the newest checkpoint that is not corrupt. Returns None when the run has none at all.

        A corrupt newer one is skipped with an event. `check` sees the manifest of each checkpoint before its files are
        read, and what it raises ends the search. Raises CheckpointError when all are corrupt: a run must not silently
        restart from step 0.
        """
        listing = self.listing()
        problems = [f"The checkpoint at step {name.step} is corrupt." for name in listing.corrupt]
        for name in listing.committed:
            try:
                manifest = self.read(name)
            except CheckpointError as error:
                problems.append(str(error))
                self._report_corrupt(name, str(error))
                continue
            check(manifest)
            try:
                self.restore(manifest, into, caches, weights)
            except CheckpointError as error:
                problems.append(str(error))
                self._report_corrupt(name, str(error))
                continue
            return manifest
        if problems:
            raise CheckpointError("No checkpoint of this run is intact: " + " ".join(problems))
        return None

    def mark_corrupt(self, manifest: Manifest, why: str) -> None:
        """Uncommit a checkpoint of this run that turned out to be corrupt after it was restored.

        Its manifest stays beside its files, under a name that commits nothing: a run that had a checkpoint must not
        restart from step 0.
        """
        if manifest.run_id == self.run_id:
            name = CheckpointId(manifest.step, manifest.keyed_attempt)
            self.store.put_bytes(corrupt_key(self.run_id, *name), manifest.to_bytes())
            self.store.delete(manifest_key(self.run_id, *name))
            self._report_corrupt(name, why)

    def _report_corrupt(self, name: CheckpointId, why: str) -> None:
        self.journal.checkpoint(self.row(name.step, name.attempt, "failed", why))
        message = f"{why} Trying the previous checkpoint."
        self.journal.event("CheckpointDamaged", message, type="Warning", step=name.step)

    # Retention and removal

    def record_committed(self) -> None:
        """Record all committed checkpoints in the journal: who committed one may have died before recording it, or
        recorded a failure after its manifest, which only a later record replaces."""
        for manifest in self.manifests():
            self.journal.checkpoint(replace(manifest.row(self.uri_of(manifest)), updated_at=time.time()))

    def retain(self, retention: Retention, attempt: int | None = None) -> Sequence[int]:
        """Remove the checkpoints that `retention` does not keep, and record every decision. Returns removed steps.

        `attempt` names the one that asks: once a later attempt has committed a checkpoint it removes nothing.
        """
        listing = self.listing()
        if attempt is not None and self.newest_attempt(listing) > attempt:
            return ()
        manifests = {manifest.step: manifest for manifest in self.manifests(listing)}
        removed, pinned = [], self.pinned()
        metrics = {step: manifest.metrics for step, manifest in manifests.items()}
        self._remove_replaced(listing, manifests, pinned)
        for verdict in judge(retention, metrics, pinned):
            manifest = manifests[verdict.step]
            row = replace(manifest.row(self.uri_of(manifest), verdict.why), updated_at=time.time())
            if verdict.keep:
                self.journal.checkpoint(row)
            else:
                self.journal.checkpoint(replace(row, state="deleting"))
                self.remove(verdict.step)
                self.journal.checkpoint(replace(row, state="deleted", updated_at=time.time()))
                removed.append(verdict.step)
        return removed

    def _remove_replaced(self, listing: Listing, manifests: Mapping[int, Manifest], pinned: Collection[int]) -> None:
        """Remove what earlier attempts stored of steps that a later one has committed again."""
        for name in listing.committed:
            newer = manifests.get(name.step)
            if newer is not None and name.attempt < newer.keyed_attempt and name.step not in pinned:
                self._remove(name, listing)

    def pin(self, step: int) -> None:
        """Keep the checkpoint at `step` from retention until `unpin`. Raises CheckpointError if it is not committed."""
        self.store.put_bytes(pin_key(self.run_id, step), b"")
        try:
            self.manifest(step)  # only now: a retention that began before may have removed it
        except CheckpointError:
            self.unpin(step)
            raise

    def unpin(self, step: int) -> None:
        """Leave the checkpoint at `step` to retention again."""
        self.store.delete(pin_key(self.run_id, step))

    def pinned(self) -> set[int]:
        """Steps whose checkpoints are kept whatever retention says."""
        prefix = pins_prefix(self.run_id)
        steps = (parse_step_folder(info.key.removeprefix(prefix)) for info in self.store.list(prefix))
        return {step for step in steps if step is not None}

    def remove(self, step: int) -> None:
        """Remove the objects of `step`, manifests first: what an interrupted removal leaves is swept."""
        listing = self.listing()
        # The highest attempt last: what an interrupted removal leaves is the step's newest state.
        for name in sorted(name for name in listing.checkpoints if name.step == step):
            self._remove(name, listing)

    def _remove(self, name: CheckpointId, listing: Listing) -> None:
        manifest = manifest_key(self.run_id, *name)
        for key in sorted(listing.checkpoints[name], key=lambda key: key != manifest):
            self.store.delete(key)

    def sweep(self, grace_seconds: float = GRACE_SECONDS, busy: Iterable[int] = ()) -> Sequence[int]:
        """Remove what no checkpoint needs and was not changed for `grace_seconds`; `busy` steps are being uploaded now.

        Returns the steps of incomplete uploads.
        """
        self.store.sweep_incomplete(checkpoints_prefix(self.run_id), grace_seconds)
        swept = []
        for leftover in self.leftovers(grace_seconds, busy):
            self.remove_leftover(leftover)
            swept += [leftover.step] if leftover.step is not None else []
        return swept

    def remove_leftover(self, leftover: Leftover) -> None:
        """Remove objects that no checkpoint needs."""
        for key in leftover.keys:
            self.store.delete(key)
        if leftover.kind == "TornUpload" and leftover.checkpoint is not None:
            step = leftover.checkpoint.step
            self.journal.checkpoint(self.row(*leftover.checkpoint, "deleted", "Removed: incomplete upload."))
            self.journal.event("CheckpointSwept", f"The incomplete upload of step {step} was removed.", step=step)

    def leftovers(self, grace_seconds: float = GRACE_SECONDS, busy: Iterable[int] = ()) -> Sequence[Leftover]:
        """What `sweep` would remove."""
        return leftovers(self.listing(), self.read, time.time() - grace_seconds, list(busy))

    def row(self, step: int, attempt: int, state: CheckpointState, decision: str | None = None) -> CheckpointRow:
        """The record of a checkpoint that has no manifest."""
        uri = self.uri(step, attempt)
        return CheckpointRow(self.run_id, step, attempt, state, uri, time.time(), decision=decision)
