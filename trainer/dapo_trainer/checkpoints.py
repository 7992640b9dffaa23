"""Checkpoints in the object store: whole or absent, found, verified, restored, kept and removed.

A checkpoint is committed by its manifest, which is written after all of its files and removed before any of them.
What has no manifest is the rest of an upload that was torn, and is never resumed from.
"""

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from dapo_core.db import CheckpointRow, CheckpointState, EventType
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.manifest import FileEntry, Manifest, parse
from dapo_core.naming import checkpoint_prefix, checkpoints_prefix, manifest_key, parse_step_folder
from dapo_core.objectstore import ObjectNotFoundError, ObjectStore
from dapo_core.resume import committed
from dapo_core.retention import Retention, judge
from dapo_trainer.parallel import parallel

log = logging.getLogger(__name__)

# Two files at a time: enough to hide a store's latency, and one core is left to training on a small machine.
WORKERS: Final = 2
_CHUNK: Final = 1024 * 1024  # bytes; hashing one lets other threads run
SYNC_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 3600.0

Put = Callable[[], None]


class Journal(Protocol):
    """Where news of checkpoints go: `dapo_trainer.spool.Spool`."""

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

    def __init__(self, store: ObjectStore, run_id: str, journal: Journal | None = None) -> None:
        self.store = store
        self.run_id = run_id
        self.journal: Journal = journal or Silent()

    def uri(self, step: int) -> str:
        """Where the checkpoint of `step` lies, for people and for `resumeFrom`."""
        return f"{self.store.url.rstrip('/')}/{checkpoint_prefix(self.run_id, step)}".rstrip("/")

    def steps(self) -> list[int]:
        """Steps that have a manifest, newest first."""
        return sorted(step for step, keys in self._folders().items() if manifest_key(self.run_id, step) in keys)[::-1]

    def manifest(self, step: int) -> Manifest:
        """The manifest of `step`. Raises CheckpointError when it is absent, damaged or of another step."""
        key = manifest_key(self.run_id, step)
        try:
            manifest = parse(self.store.get_bytes(key), key)
        except ObjectNotFoundError as error:
            raise CheckpointError(
                f"There is no committed checkpoint of step {step} of the run {self.run_id}."
            ) from error
        if manifest.step != step:
            raise CheckpointError(f"{key} is of step {manifest.step}.")
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
        put: Callable[[Put], None] = lambda once: once(),
    ) -> Manifest:
        """Store `folder` as the checkpoint of `step`: files, then the manifest, then the record of it.

        `give`: nobody writes to the folder's files any more, so that a folder store may link them. Every single
        write to the store goes through `put`, which may repeat it. Raises StoreError, or CheckpointError when the
        folder itself can not be read.
        """
        prefix = checkpoint_prefix(self.run_id, step)
        # A step that is done again replaces what an earlier attempt left there: uncommit it first.
        put(lambda: self.store.delete(manifest_key(self.run_id, step)))

        def store_file(path: Path) -> FileEntry:
            entry = _entry(folder, path)
            put(lambda: self.store.put_file(prefix + entry.path, path, give=give))
            return entry

        files = tuple(parallel(store_file, _files(folder), WORKERS))
        # A resume begins after this step: its metrics have to be safe before it may be resumed from.
        self.journal.sync(SYNC_SECONDS)
        manifest = Manifest(self.run_id, step, attempt, spec_digest, time.time(), files, dict(metrics or {}))
        data = manifest.to_bytes()
        put(lambda: self.store.put_bytes(manifest_key(self.run_id, step), data))
        self.journal.checkpoint(manifest.row(self.uri(step)))
        self._remove_strangers(manifest)
        return manifest

    def _remove_strangers(self, manifest: Manifest) -> None:
        """Files that an earlier, torn upload of the step left between those of this one."""
        prefix = checkpoint_prefix(self.run_id, manifest.step)
        known = {prefix + entry.path for entry in manifest.files} | {manifest_key(self.run_id, manifest.step)}
        for key in self._folders().get(manifest.step, {}).keys() - known:
            self.store.delete(key)

    # Reading

    def verify(self, manifest: Manifest) -> None:
        """Read all of a checkpoint. Raises CheckpointError, naming the file, when it is not what was stored."""
        prefix = checkpoint_prefix(self.run_id, manifest.step)

        def check(entry: FileEntry) -> None:
            try:
                with self.store.open(prefix + entry.path) as stream:
                    _compare(manifest, entry, stream)
            except ObjectNotFoundError as error:
                raise _missing(manifest, entry) from error

        parallel(check, manifest.files, WORKERS)

    def pick(self) -> Manifest | None:
        """The newest committed checkpoint that is whole; None when the run has none at all.

        A damaged newer one is passed over with an event. Raises CheckpointError when all are damaged: a run must
        not silently begin anew.
        """
        return self._first_that(self.verify)

    def restore(self, manifest: Manifest, into: Path) -> None:
        """Bring a checkpoint to the folder `into`, which is there in whole or not at all; sums are verified.

        Raises CheckpointError when it is damaged, StoreError when the store or the local disk fails.
        """
        prefix = checkpoint_prefix(self.run_id, manifest.step)
        part = into.with_name(f".{into.name}.part")

        def fetch(entry: FileEntry) -> None:
            target = part / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.store.get_file(prefix + entry.path, target)
            except ObjectNotFoundError as error:
                raise _missing(manifest, entry) from error
            with target.open("rb") as stream:
                _compare(manifest, entry, stream)

        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            parallel(fetch, manifest.files, WORKERS)
            if into.exists():
                shutil.rmtree(into)
            part.rename(into)
        except OSError as error:
            raise StoreError(f"The checkpoint can not be written to {into}: {error.strerror}.") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def restore_newest(self, into: Path, spec_digest: str | None = None) -> Manifest | None:
        """Restore what `pick` would pick, reading it only once. None when the run has no checkpoint.

        Raises CheckpointError also when it was written by a job whose digest is not `spec_digest`.
        """

        def restore(manifest: Manifest) -> None:
            if spec_digest is None or manifest.spec_digest == spec_digest:
                self.restore(manifest, into)

        found = self._first_that(restore)
        if found is not None and spec_digest is not None and found.spec_digest != spec_digest:
            raise CheckpointError(
                f"The checkpoint of step {found.step} was written by another job (digest {found.spec_digest[:12]}, "
                f"now {spec_digest[:12]}): undo the change of the model, data or algorithm, or start a new run."
            )
        return found

    def _first_that(self, holds: Callable[[Manifest], None]) -> Manifest | None:
        problems: list[str] = []
        for step in self.steps():
            try:
                manifest = self.manifest(step)
                holds(manifest)
            except CheckpointError as error:
                problems.append(str(error))
                self.journal.checkpoint(self.row(step, 0, "failed", str(error)))
                self.journal.event("CheckpointDamaged", f"{error} The one before is tried.", type="Warning", step=step)
                continue
            return manifest
        if problems:
            raise CheckpointError("No checkpoint of this run is whole: " + " ".join(problems))
        return None

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
        """Remove the rests of torn uploads that nothing was added to for `grace_seconds`; their steps.

        `busy` are steps that are being uploaded now.
        """
        self.store.sweep_incomplete(checkpoints_prefix(self.run_id), grace_seconds)
        limit = time.time() - grace_seconds
        swept = []
        for step, keys in sorted(self._folders().items()):
            if step in busy or manifest_key(self.run_id, step) in keys or max(keys.values()) > limit:
                continue
            for key in keys:
                self.store.delete(key)
            self.journal.checkpoint(self.row(step, 0, "deleted", "Removed: its upload never ended."))
            self.journal.event("CheckpointSwept", f"The torn upload of step {step} was removed.", step=step)
            swept.append(step)
        return swept

    def row(self, step: int, attempt: int, state: CheckpointState, decision: str | None = None) -> CheckpointRow:
        """A row of a checkpoint that has no manifest."""
        return CheckpointRow(self.run_id, step, attempt, state, self.uri(step), time.time(), decision=decision)

    def _folders(self) -> dict[int, dict[str, float]]:
        """Keys, with the time of their last change, by step."""
        prefix = checkpoints_prefix(self.run_id)
        found: dict[int, dict[str, float]] = {}
        for info in self.store.list(prefix):
            step = parse_step_folder(info.key.removeprefix(prefix).partition("/")[0])
            if step is not None:
                found.setdefault(step, {})[info.key] = info.modified
        return found


def _files(folder: Path) -> list[Path]:
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise CheckpointError(f"The checkpoint folder {folder} can not be read: {error.strerror}.") from error
    if not files:
        raise CheckpointError(f"The checkpoint folder {folder} is empty or absent.")
    return files


def _entry(folder: Path, path: Path) -> FileEntry:
    try:
        with path.open("rb") as stream:
            size, digest = _measure(stream)
            return FileEntry(path.relative_to(folder).as_posix(), size, digest)
    except OSError as error:
        raise CheckpointError(f"The checkpoint file {path} can not be read: {error.strerror}.") from error


def _compare(manifest: Manifest, entry: FileEntry, stream: BinaryIO) -> None:
    size, digest = _measure(stream)
    if size != entry.size:
        raise CheckpointError(
            f"The checkpoint of step {manifest.step} is damaged: {entry.path} has {size} bytes instead of {entry.size}."
        )
    if digest != entry.sha256:
        raise CheckpointError(
            f"The checkpoint of step {manifest.step} is damaged: the content of {entry.path} has changed."
        )


def _measure(stream: BinaryIO) -> tuple[int, str]:
    """Size and SHA-256. Not `hashlib.file_digest`: a stream of an object store may not know its position."""
    size, digest = 0, hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        digest.update(chunk)
    return size, digest.hexdigest()


def _missing(manifest: Manifest, entry: FileEntry) -> CheckpointError:
    return CheckpointError(f"The checkpoint of step {manifest.step} is damaged: {entry.path} is missing.")
