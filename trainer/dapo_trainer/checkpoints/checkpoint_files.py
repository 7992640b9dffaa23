"""The files of a checkpoint, one by one: on the disk, in the store, and whether the two are the same."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dapo_core.errors import CheckpointError, StoreError
from dapo_core.objectstore import Content, ObjectNotFoundError, ObjectStore, measure, part_bytes_of
from dapo_core.run.checkpoint import FileEntry, Manifest

# Text that comes with the model is the same in every checkpoint; tensors and queues differ each time.
_SHARED_SUFFIXES: Final = frozenset({".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"})
_SHARED_BYTES: Final = 64 * 1024 * 1024


def local_files(folder: Path) -> list[Path]:
    """All files under `folder`, by name. Raises CheckpointError when there are none."""
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise CheckpointError(f"The checkpoint folder {folder} cannot be read: {error.strerror}.") from error
    if not files:
        raise CheckpointError(f"The checkpoint folder {folder} is empty or does not exist.")
    return files


def is_shared(path: Path) -> bool:
    """Whether a file is stored once for all checkpoints of the run. Raises CheckpointError when it cannot be read."""
    if path.suffix not in _SHARED_SUFFIXES:
        return False
    try:
        return path.stat().st_size <= _SHARED_BYTES
    except OSError as error:
        raise CheckpointError(f"The checkpoint file {path} cannot be read: {error.strerror}.") from error


def content_of(path: Path, like: FileEntry | None = None) -> Content:
    """Size and checksum, computed as for `like`, else as a store does. Raises CheckpointError."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return measure(stream, part_bytes=like.part_bytes if like else part_bytes_of(size))
    except OSError as error:
        raise CheckpointError(f"The checkpoint file {path} cannot be read: {error.strerror}.") from error


def verify(store: ObjectStore, manifest: Manifest, entry: FileEntry) -> None:
    """Read one file of the store to its end. Raises CheckpointError when it is missing or corrupt."""
    try:
        with store.open(manifest.key(entry)) as stream:
            compare(manifest, entry, measure(stream, part_bytes=entry.part_bytes))
    except ObjectNotFoundError as error:
        raise _missing(manifest, entry) from error


def fetch(store: ObjectStore, manifest: Manifest, entry: FileEntry, folder: Path, caches: Sequence[Path]) -> None:
    """Write one file to `folder`: from the first of `caches` that has it unchanged, else from the store, verified.

    Raises CheckpointError when it is missing or corrupt, StoreError when the store fails, OSError when the disk does.
    """
    target = folder / entry.path
    target.parent.mkdir(parents=True, exist_ok=True)
    if any(_from_cache(cache / entry.path, entry, target) for cache in caches):
        return
    try:
        with store.open(manifest.key(entry)) as stream, target.open("wb") as file:
            compare(manifest, entry, measure(stream, file, entry.part_bytes))
    except ObjectNotFoundError as error:
        raise _missing(manifest, entry) from error


def staged(folder: Path) -> Path:
    """The folder that a checkpoint's files are fetched to, before all of them are known to be intact."""
    return folder.with_name(f".{folder.name}.part")


def _from_cache(source: Path, entry: FileEntry, target: Path) -> bool:
    """Link or copy a local file with the right content. Returns False when it is missing or differs."""
    try:
        if source.stat().st_size != entry.size or content_of(source, entry).sha256 != entry.sha256:
            return False
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copyfile(source, target)
    except (OSError, StoreError):
        return False
    return True


def compare(manifest: Manifest, entry: FileEntry, content: Content) -> None:
    """Raises CheckpointError when `content` is not that of `entry`."""
    if content.size != entry.size:
        reason = f"{entry.path} has {content.size} bytes instead of {entry.size}"
    elif content.sha256 != entry.sha256:
        reason = f"the content of {entry.path} has changed"
    else:
        return
    raise corrupt(manifest, reason)


def corrupt(manifest: Manifest, reason: str) -> CheckpointError:
    """The error for a checkpoint whose files are not what its manifest says."""
    return CheckpointError(f"The checkpoint at step {manifest.step} is corrupt: {reason}.")


def _missing(manifest: Manifest, entry: FileEntry) -> CheckpointError:
    return corrupt(manifest, f"{entry.path} is missing")
