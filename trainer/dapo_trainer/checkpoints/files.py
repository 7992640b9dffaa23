"""The files of a checkpoint: on the disk, in the store, and whether the two are the same."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dapo_core.errors import CheckpointError, StoreError
from dapo_core.objectstore import Content, ObjectNotFoundError, ObjectStore, measure, part_bytes_of
from dapo_core.run.checkpoint import FileEntry, Manifest

# Text that comes with the model, the same in every checkpoint; tensors and queues are different each time.
_SHARED_SUFFIXES: Final = frozenset({".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"})
_SHARED_BYTES: Final = 64 * 1024 * 1024


def local_files(folder: Path) -> list[Path]:
    """All files under `folder`, by name. Raises CheckpointError when there are none."""
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise CheckpointError(f"The checkpoint folder {folder} can not be read: {error.strerror}.") from error
    if not files:
        raise CheckpointError(f"The checkpoint folder {folder} is empty or absent.")
    return files


def is_shared(path: Path) -> bool:
    """Whether a file is of the kind that checkpoints have in common. Raises CheckpointError when it can not be read."""
    if path.suffix not in _SHARED_SUFFIXES:
        return False
    try:
        return path.stat().st_size <= _SHARED_BYTES
    except OSError as error:
        raise CheckpointError(f"The checkpoint file {path} can not be read: {error.strerror}.") from error


def content_of(path: Path, like: FileEntry | None = None) -> Content:
    """Summed as `like` is, else as a store does it. Raises CheckpointError when the file can not be read."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return measure(stream, part_bytes=like.part_bytes if like else part_bytes_of(size))
    except OSError as error:
        raise CheckpointError(f"The checkpoint file {path} can not be read: {error.strerror}.") from error


def verify(store: ObjectStore, manifest: Manifest, entry: FileEntry) -> None:
    """Read one file to its end. Raises CheckpointError when it is not what was stored."""
    try:
        with store.open(manifest.key(entry)) as stream:
            compare(manifest, entry, measure(stream, part_bytes=entry.part_bytes))
    except ObjectNotFoundError as error:
        raise _missing(manifest, entry) from error


def fetch(store: ObjectStore, manifest: Manifest, entry: FileEntry, folder: Path, caches: Sequence[Path]) -> None:
    """Bring one file to `folder`: from the first of `caches` that has it unchanged, else from the store, verified.

    Raises CheckpointError when it is damaged, StoreError when the store fails, OSError when the disk does.
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


def _from_cache(source: Path, entry: FileEntry, target: Path) -> bool:
    """Take a local file that has the content, by a link where that can be; False when it has not, or is not there."""
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
    raise CheckpointError(f"The checkpoint of step {manifest.step} is damaged: {reason}.")


def _missing(manifest: Manifest, entry: FileEntry) -> CheckpointError:
    return CheckpointError(f"The checkpoint of step {manifest.step} is damaged: {entry.path} is missing.")
