"""What every object store promises; `tests/core/test_objectstore.py` runs it against each there is.

An object is there whole or not at all, also after a crash of its writer; a later `put` replaces it; what `put` has
returned from survives a loss of power; keys are relative paths with `/`; every method may be called from any thread.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from dapo_core.errors import StoreError

# Bytes: few enough to be summed and copied before they leave the processor's cache, and summing them lets other threads
# run.
CHUNK: Final = 256 * 1024
# Bytes of the parts of a big file, of which S3 takes ten thousand at most.
PART_BYTES: Final = 16 * 1024 * 1024
_MAX_PARTS: Final = 10_000


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
    """What identifies bytes: how many, and their SHA-256 in hexadecimal.

    With `part_bytes` it is the SHA-256 of the SHA-256 sums of their parts of so many bytes, one after the other: each
    part has one sum to be sent by and to be known by, and nobody has to wait for the part before it.
    """

    size: int
    sha256: str
    part_bytes: int | None = None


class Readable(Protocol):
    """A stream to read from its beginning."""

    def read(self, size: int = -1, /) -> bytes: ...

    def readinto(self, buffer: memoryview, /) -> int | None: ...


class ObjectStore(Protocol):
    """A store of objects. Methods raise StoreError: ObjectNotFoundError for an absent object, StoreUnreachableError
    after having tried for a while."""

    @property
    def url(self) -> str:
        """What `open_store` opens this store by."""

    def address(self, key: str) -> str:
        """The URL of an object or of a prefix, for people and for programs that know no store."""

    def put_file(self, key: str, path: Path, *, give: bool = False) -> Content:
        """Store the file's content and tell what it was, read once and summed as `part_bytes_of` its size says.

        `give` promises that nobody changes the file any more, so it need not be copied.
        """

    def put_bytes(self, key: str, data: bytes) -> None: ...

    def get_file(self, key: str, path: Path) -> None:
        """Write the object to `path`, whose folder exists. After an error the file may be there in part."""

    def get_bytes(self, key: str) -> bytes: ...

    def open(self, key: str) -> AbstractContextManager[Readable]:
        """The object's content as a stream to read; it need not know its position."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, by key. Uploads in progress are not among them."""

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""

    def exists(self, key: str) -> bool: ...

    def sweep_incomplete(self, prefix: str, older_than_seconds: float) -> int:
        """Remove what uploads that ended half-way left under `prefix`; how many there were."""


def part_bytes_of(size: int) -> int | None:
    """Of how many bytes the parts are by which a file of `size` is sent and summed; None: it is summed as a whole."""
    return max(PART_BYTES, -(-size // _MAX_PARTS)) if size > PART_BYTES else None


def measure(stream: Readable, copy_to: BinaryIO | None = None, part_bytes: int | None = None) -> Content:
    """Read a stream to its end, copying it on the way if asked to; summed as a whole, or by parts of `part_bytes`."""
    block = memoryview(bytearray(CHUNK))
    parts: list[Content] = []
    while True:
        parts.append(_measure_part(stream, copy_to, part_bytes, block))
        if part_bytes is None:
            return parts[0]
        if parts[-1].size < part_bytes:
            return of_parts([part for part in parts if part.size], part_bytes)


def _measure_part(stream: Readable, copy_to: BinaryIO | None, most: int | None, block: memoryview) -> Content:
    """The next `most` bytes of a stream, or all that is left of it."""
    digest, size = hashlib.sha256(), 0
    while length := stream.readinto(block if most is None else block[: most - size]):
        digest.update(block[:length])
        if copy_to is not None:
            copy_to.write(block[:length])
        size += length
    return Content(size, digest.hexdigest())


def of_parts(parts: Sequence[Content], part_bytes: int) -> Content:
    """The content that consists of `parts`, all but the last of which have `part_bytes`."""
    sums = b"".join(bytes.fromhex(part.sha256) for part in parts)
    return Content(sum(part.size for part in parts), hashlib.sha256(sums).hexdigest(), part_bytes)


def check_key(key: str) -> str:
    """`key` itself. Raises StoreError for one that could lead outside of the store."""
    if not key or key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/")):
        raise StoreError(f"The object key {key!r} is not a relative path.")
    return key
