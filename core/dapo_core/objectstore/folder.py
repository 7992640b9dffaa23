"""Objects as files under one folder."""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from dapo_core.errors import StoreError
from dapo_core.objectstore.contract import (
    MOST_BYTES,
    Content,
    ObjectInfo,
    ObjectNotFoundError,
    Readable,
    check_key,
    measure,
    part_bytes_of,
    read_whole,
)

T = TypeVar("T")
_PART: Final = ".dapo-part"


class FolderStore:
    """Objects as files under one folder. A file is written beside its place, synced and renamed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = root.absolute().as_uri()

    def address(self, key: str) -> str:
        return (self.root.absolute() / key).as_uri()

    def put_file(self, key: str, path: Path, *, give: bool = False) -> Content:
        # A hard link costs no time and no space, but shares the file with its old name: only for files that were given
        # away.
        return self._put(key, lambda part: _link_or_copy(path, part) if give else _copy(path, part))

    def put_bytes(self, key: str, data: bytes) -> None:
        self._put(key, lambda part: part.write_bytes(data))

    def _put(self, key: str, fill: Callable[[Path], T]) -> T:
        target = self._path(key)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}{_PART}")
        with _explained(f"{key} cannot be written to {self.root}", absent=StoreError):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                filled = fill(part)
                _sync(part)
                part.replace(target)
                _sync(target.parent)
                return filled
            finally:
                part.unlink(missing_ok=True)

    def get_file(self, key: str, path: Path) -> None:
        with _explained(f"{key} cannot be read from {self.root}"):
            shutil.copyfile(self._path(key), path)

    def get_bytes(self, key: str, most: int = MOST_BYTES) -> bytes:
        with self.open(key) as stream:
            return read_whole(key, stream, most)

    @contextmanager
    def open(self, key: str) -> Iterator[Readable]:
        with _explained(f"{key} cannot be read from {self.root}"), self._path(key).open("rb") as stream:
            yield stream

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with _explained(f"{prefix} cannot be listed in {self.root}"):
            objects = [path for path in self._files(prefix) if not path.name.endswith(_PART)]
            infos = [info for path in objects if (info := self._info(path)) is not None]
        yield from sorted(infos, key=lambda info: info.key)

    def folders(self) -> Iterator[str]:
        with _explained(f"folders cannot be listed in {self.root}"):
            found = sorted(path.name for path in self.root.iterdir() if path.is_dir()) if self.root.exists() else []
        yield from found

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _explained(f"{key} cannot be deleted from {self.root}"):
            path.unlink(missing_ok=True)
            self._remove_empty_folders(path.parent)

    def exists(self, key: str) -> bool:
        with _explained(f"{key} cannot be looked up in {self.root}"):
            return self._path(key).is_file()

    def sweep_incomplete(self, prefix: str, older_than_seconds: float) -> int:
        limit = time.time() - older_than_seconds
        swept = 0
        with _explained(f"{prefix} cannot be swept in {self.root}"):
            for path in [path for path in self._files(prefix) if path.name.endswith(_PART)]:
                info = self._info(path)
                if info is not None and info.modified <= limit:
                    path.unlink(missing_ok=True)
                    swept += 1
        return swept

    def _files(self, prefix: str) -> Iterator[Path]:
        folder, _, start = prefix.rpartition("/")
        base = self._path(folder) if folder else self.root
        for path in base.rglob("*"):
            name = path.relative_to(base).as_posix()
            # The name of a part begins with a dot that its key does not have.
            shown = path.with_name(path.name[1:]).relative_to(base).as_posix() if path.name.endswith(_PART) else name
            if shown.startswith(start) and path.is_file():
                yield path

    def _info(self, path: Path) -> ObjectInfo | None:
        try:
            facts = path.stat()
        except FileNotFoundError:  # deleted since it was listed
            return None
        return ObjectInfo(path.relative_to(self.root).as_posix(), facts.st_size, facts.st_mtime)

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self.root and folder.is_relative_to(self.root):
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone
                return
            folder = folder.parent

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)


@contextmanager
def _explained(what: str, absent: type[StoreError] = ObjectNotFoundError) -> Iterator[None]:
    """Raises operating system errors as StoreError."""
    try:
        yield
    except FileNotFoundError as error:
        raise absent(f"{what}: {error.filename} does not exist.") from error
    except OSError as error:
        remedy = "; free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StoreError(f"{what}: {(error.strerror or str(error)).lower()}{remedy}.") from error


def _link_or_copy(source: Path, target: Path) -> Content:
    try:
        os.link(source, target)
    except OSError as error:
        # Another file system, or one without hard links; any other error would fail the copy as well.
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        return _copy(source, target)
    with target.open("rb") as stream:
        return measure(stream, part_bytes=_part_bytes(stream))


def _copy(source: Path, target: Path) -> Content:
    # Not the time of the source: the sweeper goes by when the object was stored.
    with source.open("rb") as stream, target.open("wb") as copied:
        return measure(stream, copied, _part_bytes(stream))


def _part_bytes(stream: BinaryIO) -> int | None:
    return part_bytes_of(os.fstat(stream.fileno()).st_size)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
