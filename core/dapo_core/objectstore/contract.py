"""What every object store promises; `tests/core/test_objectstore.py` runs it against each there is.

An object is there whole or not at all, also after a crash of its writer; a later `put` replaces it; what `put` has
returned from survives a loss of power; keys are relative paths with `/`; every method may be called from any thread.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from dapo_core.errors import StoreError

CHUNK: Final = 1024 * 1024  # bytes; hashing one lets other threads run


class ObjectNotFoundError(StoreError):
    """There is no object of this key."""


class StoreUnreachableError(StoreError):
    """The store does not answer, or says that it can not just now: it may in a while."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object as listed: size in bytes, time of its last change in Unix seconds."""

    key: str
    size: int
    modified: float


@dataclass(frozen=True)
class Content:
    """What identifies bytes: how many, and their SHA-256 in hexadecimal."""

    size: int
    sha256: str


class ObjectStore(Protocol):
    """A store of objects. Methods raise StoreError: ObjectNotFoundError for an absent object, StoreUnreachableError
    after having tried for a while."""

    @property
    def url(self) -> str:
        """What `open_store` opens this store by."""

    def address(self, key: str) -> str:
        """The URL of an object or of a prefix, for people and for programs that know no store."""

    def put_file(self, key: str, path: Path, *, give: bool = False) -> Content:
        """Store the file's content and tell what it was, read once.

        `give` promises that nobody changes the file any more, so it need not be copied.
        """

    def put_bytes(self, key: str, data: bytes) -> None: ...

    def get_file(self, key: str, path: Path) -> None:
        """Write the object to `path`, whose folder exists. After an error the file may be there in part."""

    def get_bytes(self, key: str) -> bytes: ...

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """The object's content as a stream to read; it need not know its position."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, by key. Uploads in progress are not among them."""

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""

    def exists(self, key: str) -> bool: ...

    def sweep_incomplete(self, prefix: str, older_than_seconds: float) -> int:
        """Remove what uploads that ended half-way left under `prefix`; how many there were."""


class HashingReader:
    """A stream that is read once, from its beginning, and knows afterwards what went through it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        self._size += len(data)
        return data

    @property
    def content(self) -> Content:
        return Content(self._size, self._digest.hexdigest())


def measure(stream: BinaryIO, copy_to: BinaryIO | None = None) -> Content:
    """Read a stream to its end, copying it on the way if asked to."""
    reader = HashingReader(stream)
    while chunk := reader.read(CHUNK):
        if copy_to is not None:
            copy_to.write(chunk)
    return reader.content


def check_key(key: str) -> str:
    """`key` itself. Raises StoreError for one that could lead outside of the store."""
    if not key or key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/")):
        raise StoreError(f"The object key {key!r} is not a relative path.")
    return key
