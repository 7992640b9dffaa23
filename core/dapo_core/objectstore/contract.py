"""What every object store guarantees; `tests/core/test_objectstore.py` checks each of them.

An object exists whole or not at all, even after a crash of its writer; a later `put` replaces it; once `put` has
returned, the object survives a loss of power; keys are relative paths with `/`; every method is thread-safe.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from dapo_core.errors import StoreError

# Bytes: few enough to be hashed and copied while they are in the CPU's cache, enough for hashing to release the GIL.
CHUNK: Final = 256 * 1024
# Bytes of each part of a large file; S3 accepts at most ten thousand parts.
PART_BYTES: Final = 16 * 1024 * 1024
_MAX_PARTS: Final = 10_000
# Bytes of an object that is read into memory, more than any of ours has: whoever may write to a store may write objects
# of any size.
MOST_BYTES: Final = 64 * 1024 * 1024


class ObjectNotFoundError(StoreError):
    """There is no object with this key."""


class ObjectTooLargeError(StoreError):
    """The object has more bytes than whoever reads it takes."""


class StoreUnreachableError(StoreError):
    """The store does not answer, or not just now: retrying may help."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object as listed: size in bytes, last modification in Unix seconds."""

    key: str
    size: int
    modified: float


@dataclass(frozen=True)
class Content:
    """What identifies content: its size in bytes and its SHA-256 in hexadecimal.

    With `part_bytes`, that is the SHA-256 of the concatenated SHA-256 sums of its parts of that size, so that parts can
    be hashed in any order and each is sent with the sum by which it is known.
    """

    size: int
    sha256: str
    part_bytes: int | None = None


class Readable(Protocol):
    """A stream that is read from its beginning."""

    def read(self, size: int = -1, /) -> bytes: ...

    def readinto(self, buffer: memoryview, /) -> int | None: ...


class ObjectStore(Protocol):
    """A store of objects. Methods raise StoreError: ObjectNotFoundError for a missing object, StoreUnreachableError
    after some retries."""

    @property
    def url(self) -> str:
        """The URL by which `open_store` opens this store."""

    def address(self, key: str) -> str:
        """The URL of an object or of a prefix."""

    def put_file(self, key: str, path: Path, *, give: bool = False) -> Content:
        """Stores the file and returns its content, read once and hashed in parts as `part_bytes_of` its size says.

        `give` promises that the file will not change any more, so it need not be copied.
        """

    def put_bytes(self, key: str, data: bytes) -> None: ...

    def get_file(self, key: str, path: Path) -> None:
        """Writes the object to `path`, whose folder exists. After an error the file may be incomplete."""

    def get_bytes(self, key: str, most: int = MOST_BYTES) -> bytes:
        """The object's content. Raises ObjectTooLargeError when it has more than `most` bytes."""

    def open(self, key: str) -> AbstractContextManager[Readable]:
        """The object's content as a stream, which need not be seekable."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, by key. Uploads in progress are not among them."""

    def folders(self) -> Iterator[str]:
        """The first parts of all keys that have several, each once and in order, without reading those keys."""

    def delete(self, key: str) -> None:
        """Deletes the object; a missing one is no error."""

    def exists(self, key: str) -> bool: ...

    def sweep_incomplete(self, prefix: str, older_than_seconds: float) -> int:
        """Removes what incomplete uploads left under `prefix`, and returns how many there were."""


def read_whole(key: str, stream: Readable, most: int) -> bytes:
    """The content of the object `key`, read from `stream`. Raises ObjectTooLargeError after `most` bytes."""
    blocks, size = [], 0
    while block := stream.read(CHUNK):
        size += len(block)
        if size > most:
            raise ObjectTooLargeError(f"{key} has more than {most:,} bytes, the limit for reading it.")
        blocks.append(block)
    return b"".join(blocks)


def part_bytes_of(size: int) -> int | None:
    """Size in bytes of the parts in which a file of `size` is sent and hashed; None: as a whole."""
    return max(PART_BYTES, -(-size // _MAX_PARTS)) if size > PART_BYTES else None


def measure(stream: Readable, copy_to: BinaryIO | None = None, part_bytes: int | None = None) -> Content:
    """Reads a stream to its end, hashes it as a whole or in parts of `part_bytes`, and copies it to `copy_to`."""
    block = memoryview(bytearray(CHUNK))
    parts: list[Content] = []
    while True:
        parts.append(_measure_part(stream, copy_to, part_bytes, block))
        if part_bytes is None:
            return parts[0]
        if parts[-1].size < part_bytes:
            return of_parts([part for part in parts if part.size], part_bytes)


def _measure_part(stream: Readable, copy_to: BinaryIO | None, most: int | None, block: memoryview) -> Content:
    """The next `most` bytes of a stream, or the rest of it."""
    digest, size = hashlib.sha256(), 0
    while length := stream.readinto(block if most is None else block[: most - size]):
        digest.update(block[:length])
        if copy_to is not None:
            copy_to.write(block[:length])
        size += length
    return Content(size, digest.hexdigest())


def of_parts(parts: Sequence[Content], part_bytes: int) -> Content:
    """The content that consists of `parts`, all of `part_bytes` except the last."""
    sums = b"".join(bytes.fromhex(part.sha256) for part in parts)
    return Content(sum(part.size for part in parts), hashlib.sha256(sums).hexdigest(), part_bytes)


def check_key(key: str) -> str:
    """Returns `key`. Raises StoreError if it could lead outside the store."""
    if not key or key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/")):
        raise StoreError(f"The object key {key!r} is not a relative path.")
    return key
