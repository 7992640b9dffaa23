"""Stores that fail when a test says so."""

import errno
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dapo_core.db import CheckpointRow, EventType, Receipt, WriteBatch
from dapo_core.errors import StoreError
from dapo_core.objectstore import Content, ObjectInfo, ObjectNotFoundError, measure, part_bytes_of
from dapo_core.objectstore.contract import MOST_BYTES, Readable, read_whole
from dapo_trainer.spool.segment_writer import SegmentFile

Fault = Callable[[str, str], None]
"""Called with the name of an operation and its key before each; raises to make it fail."""


def no_fault(_operation: str, _key: str) -> None:
    return None


class MemoryStore:
    """Objects in a dictionary, with the contract of every object store."""

    def __init__(self, fault: Fault = no_fault) -> None:
        self.url = "memory:///"
        self.fault = fault
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.log: list[tuple[str, str]] = []

    def address(self, key: str) -> str:
        return self.url + key

    def put_file(self, key: str, path: Path, *, give: bool = False) -> Content:
        data = _read(path)
        self.put_bytes(key, data)
        return measure(io.BytesIO(data), part_bytes=part_bytes_of(len(data)))

    def put_bytes(self, key: str, data: bytes) -> None:
        self._begin("put", key)
        if not key or key.startswith("/") or ".." in key.split("/"):
            raise StoreError(f"The object key {key!r} is not a relative path.")
        self.objects[key] = (data, time.time())

    def get_file(self, key: str, path: Path) -> None:
        path.write_bytes(self.get_bytes(key))

    def get_bytes(self, key: str, most: int = MOST_BYTES) -> bytes:
        self._begin("get", key)
        if key not in self.objects:
            raise ObjectNotFoundError(f"{key} cannot be read: it does not exist.")
        return read_whole(key, io.BytesIO(self.objects[key][0]), most)

    @contextmanager
    def open(self, key: str) -> Iterator[Readable]:
        yield io.BytesIO(self.get_bytes(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._begin("list", prefix)
        for key, (data, modified) in sorted(self.objects.items()):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(data), modified)

    def folders(self) -> Iterator[str]:
        self._begin("folders", "")
        yield from sorted({key.partition("/")[0] for key in self.objects if "/" in key})

    def delete(self, key: str) -> None:
        self._begin("delete", key)
        self.objects.pop(key, None)

    def exists(self, key: str) -> bool:
        return key in self.objects

    def sweep_incomplete(self, prefix: str, older_than_seconds: float) -> int:
        return 0

    def _begin(self, operation: str, key: str) -> None:
        self.log.append((operation, key))
        self.fault(operation, key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


@dataclass
class Notebook:
    """A journal of checkpoints and samples that remembers."""

    rows: list[CheckpointRow] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    indexed: list[tuple[int, str, int]] = field(default_factory=list)
    syncs: int = 0

    def checkpoint(self, row: CheckpointRow) -> None:
        self.rows.append(row)

    def event(self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None) -> None:
        self.events.append((reason, message))

    def samples(self, step: int, key: str, rows: int, size_bytes: int) -> None:
        self.indexed.append((step, key, rows))

    def sync(self, timeout_seconds: float) -> bool:
        self.syncs += 1
        return True

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]

    def states(self) -> dict[int, str]:
        """The newest state of each step, as the metadata store would have it."""
        return {row.step: row.state for row in sorted(self.rows, key=lambda row: row.updated_at)}


class FlakySink:
    """A metadata store that first asks `fault` for each batch, and then writes it to another one, if any."""

    def __init__(
        self,
        fault: Callable[[WriteBatch], None],
        then: Callable[[str, WriteBatch, Receipt | None], None] = lambda _run, _batch, _receipt: None,
    ) -> None:
        self.fault = fault
        self._then = then
        self.batches: list[WriteBatch] = []

    def write(self, run_id: str, batch: WriteBatch, receipt: Receipt | None = None) -> None:
        self.fault(batch)
        if batch != WriteBatch():
            self.batches.append(batch)
        self._then(run_id, batch, receipt)


def full_disk(room: Callable[[], int]) -> type[SegmentFile]:
    """Segment files on a disk that has `room()` bytes in all, and like a real one takes a part of a write first."""

    class FullDiskFile(SegmentFile):
        def write(self, data: bytes) -> None:
            left = room() - self.size
            if left < len(data):
                super().write(data[: max(0, left)])
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(data)

    return FullDiskFile
