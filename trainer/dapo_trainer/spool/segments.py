"""The files of a spool folder, and how they are read.

    {folder}/000000000001.jsonl   records from number 1 on; a new segment for every few megabytes
    {folder}/cursor.json          {"seq": n}: all records up to n are in the metadata store
    {folder}/id                   a unique name, by which the metadata store remembers what it received from this folder
    {folder}/lock                 held by the process that writes the spool

A folder has one writer at a time, and record numbers continue from one writer to the next. It may belong to one attempt
or to a whole run, since each record names its attempt: the next sender of the folder delivers what is left in it.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dapo_core.local_files import write_atomically
from dapo_trainer.spool.records import Record, decode

SEGMENT_SUFFIX: Final = ".jsonl"
_CURSOR: Final = "cursor.json"
_ID: Final = "id"
# The last record is nearly always within so many bytes of a segment's end.
_TAIL: Final = 65_536


@dataclass(frozen=True)
class Segment:
    """One file of records; `first_seq` is the number of its first record."""

    first_seq: int
    path: Path

    def size(self) -> int:
        """In bytes; 0 when the file was removed."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


def segment_path(folder: Path, first_seq: int) -> Path:
    """The path of the segment that begins with record `first_seq`; names sort in the order of records."""
    return folder / f"{first_seq:012d}{SEGMENT_SUFFIX}"


def segments(folder: Path) -> list[Segment]:
    """The segments in `folder`, oldest first."""
    paths = [path for path in folder.glob(f"*{SEGMENT_SUFFIX}") if path.stem.isdecimal()]
    return sorted((Segment(int(path.stem), path) for path in paths), key=lambda segment: segment.first_seq)


def read_cursor(folder: Path) -> int:
    """The number up to which all records are delivered; 0 when the cursor is missing or corrupt."""
    try:
        return int(json.loads((folder / _CURSOR).read_bytes())["seq"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def spool_id(folder: Path) -> str | None:
    """The folder's unique name; None when nothing has been written to it."""
    try:
        return (folder / _ID).read_text().strip() or None
    except FileNotFoundError:
        return None


def ensure_spool_id(folder: Path) -> None:
    """Give the folder its unique name, once. The caller holds the folder's lock. Raises OSError."""
    if spool_id(folder) is None:
        set_spool_id(folder, uuid.uuid4().hex)


def set_spool_id(folder: Path, name: str) -> None:
    """Give a folder the name of the spool whose records it holds. Raises OSError."""
    write_atomically(folder / _ID, name)


def write_cursor(folder: Path, seq: int) -> None:
    """Record durably that all records up to `seq` are delivered. Raises OSError."""
    write_atomically(folder / _CURSOR, json.dumps({"seq": seq}), sync=True)


def last_seq(folder: Path) -> int:
    """The highest record number used in `folder`; 0 for none.

    After a power cut the cursor may be ahead of the segments. A number it covers is never used again: a record with
    that number would count as delivered.
    """
    cursor = read_cursor(folder)
    listed = segments(folder)
    return max(cursor, _last_seq_of(listed[-1])) if listed else cursor


def _last_seq_of(segment: Segment) -> int:
    for start in (max(0, segment.size() - _TAIL), 0):
        for line in reversed(_read_from(segment.path, start).splitlines(keepends=True)):
            if line.endswith(b"\n") and (record := decode(line)) is not None:
                return record.seq
    return segment.first_seq - 1


class SpoolReader:
    """Reads a spool from a given record on, also while it is written. `damaged` counts skipped lines."""

    def __init__(self, folder: Path, after_seq: int = 0) -> None:
        self.folder = folder
        self.after_seq = after_seq
        self.damaged = 0
        self._segment: Segment | None = None
        self._offset = 0

    def read(self, limit: int = 1000) -> list[Record]:
        """The next records, at most `limit`; none when there are no more yet. A half-written line is left for later."""
        result: list[Record] = []
        while len(result) < limit:
            # Listed before reading: a segment with a later one is complete.
            listed = segments(self.folder)
            if self._segment is None and not self._enter(self._first(listed)):
                break
            assert self._segment is not None
            records, consumed, damaged = _records_of(self._segment.path, self._offset, limit - len(result))
            result += [record for record in records if record.seq > self.after_seq]
            self._offset += consumed
            self.damaged += damaged
            if consumed == 0 and not self._enter(self._next(listed)):
                break
        if result:
            self.after_seq = result[-1].seq
        return result

    def _enter(self, segment: Segment | None) -> bool:
        if segment is None:
            return False
        if self._segment is not None and self._segment.size() > self._offset:
            self.damaged += 1  # an incomplete line at the end of a segment that is no longer written
        self._segment, self._offset = segment, 0
        return True

    def _first(self, listed: list[Segment]) -> Segment | None:
        holding = [segment for segment in listed if segment.first_seq <= self.after_seq + 1]
        return holding[-1] if holding else next(iter(listed), None)

    def _next(self, listed: list[Segment]) -> Segment | None:
        now = self._segment.first_seq if self._segment else 0
        return next((segment for segment in listed if segment.first_seq > now), None)


def read_records(folder: Path, after_seq: int = 0) -> Iterator[Record]:
    """All records after `after_seq` at this time; incomplete and corrupt lines are skipped."""
    reader = SpoolReader(folder, after_seq)
    while records := reader.read():
        yield from records


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:  # removed since it was listed
        return b""


def _records_of(path: Path, offset: int, limit: int | None = None) -> tuple[list[Record], int, int]:
    """Records of complete lines from `offset` on, the bytes of these lines, and how many of them are corrupt."""
    records: list[Record] = []
    consumed = damaged = 0
    try:
        file = path.open("rb")
    except FileNotFoundError:  # removed since it was listed
        return records, 0, 0
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") or len(records) == limit:
                break
            consumed += len(line)
            if (record := decode(line)) is None:
                damaged += 1
            else:
                records.append(record)
    return records, consumed, damaged
