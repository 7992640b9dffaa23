"""Appends whole lines to the segments of a spool folder, and keeps the folder below its maximum size."""

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from dapo_core.errors import StoreError
from dapo_core.local_files import lock_file
from dapo_trainer.spool.segments import Segment, ensure_spool_id, last_seq, read_cursor, segment_path, segments


class SegmentFile:
    """An open segment. `size`: bytes of complete lines; what a failed write left after them is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = self._complete_bytes()
        os.ftruncate(self._descriptor, self.size)

    def _complete_bytes(self) -> int:
        """Bytes up to the last line end: a process that was killed may have left half a line."""
        data = self.path.read_bytes()
        return data.rfind(b"\n") + 1

    def append(self, data: bytes) -> None:
        """Write and sync `data`; after an OSError the file is as it was before."""
        try:
            self.write(data)
            self.sync()
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class LostRecords:
    """Records that were removed before they were delivered: their count, and the first and last of their numbers."""

    count: int
    first: int
    last: int


class SpoolFolder:
    """The writing side of a spool folder. Raises StoreError when another process is writing it."""

    def __init__(
        self, folder: Path, max_bytes: int, segment_bytes: int, open_file: type[SegmentFile] = SegmentFile
    ) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        # The maximum must leave room for more than the segment in use, which is never removed.
        self._segment_bytes = min(segment_bytes, max(1, max_bytes // 4))
        self._open_file = open_file
        self._file: SegmentFile | None = None
        self._lock = self._take_lock()
        self.next_seq = last_seq(folder) + 1

    def append(self, data: bytes, count: int) -> None:
        """Write the lines of `count` records, numbered from `next_seq` on: all or none. Raises OSError."""
        if self._file is None:
            self._file = self._open_file(self._current_path())
        self._file.append(data)
        self.next_seq += count
        if self._file.size >= self._segment_bytes:
            self._file.close()
            self._file = None

    def _current_path(self) -> Path:
        """The newest segment while it has room, else a new one."""
        listed = segments(self.folder)
        if listed and listed[-1].size() < self._segment_bytes:
            return listed[-1].path
        return segment_path(self.folder, self.next_seq)

    def remove_delivered(self) -> None:
        """Remove old segments whose records are all delivered. Raises OSError."""
        cursor = read_cursor(self.folder)
        for segment, following in _with_following(self.folder):
            if following - 1 <= cursor:
                segment.path.unlink(missing_ok=True)

    def trim(self) -> LostRecords | None:
        """Remove segments until the folder is below its maximum size; None when no undelivered record was lost.

        The oldest segments are removed first: the recent state of a run is worth more to a reader than its start.
        Raises OSError.
        """
        if self._file is not None:
            return None  # checked only when a segment was filled: the maximum is kept within one segment
        cursor = read_cursor(self.folder)
        size = sum(segment.size() for segment in segments(self.folder))
        lost: list[tuple[int, int]] = []
        for segment, following in _with_following(self.folder):
            if size <= self._max_bytes:
                break
            size -= segment.size()
            segment.path.unlink(missing_ok=True)
            if following - 1 > cursor:
                lost.append((max(segment.first_seq, cursor + 1), following - 1))
        if not lost:
            return None
        return LostRecords(sum(last - first + 1 for first, last in lost), lost[0][0], lost[-1][1])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        os.close(self._lock)

    def _take_lock(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = lock_file(self.folder / "lock")
        except BlockingIOError as error:
            raise StoreError(f"The spool folder {self.folder} is being written by another process.") from error
        except OSError as error:
            raise StoreError(f"The spool folder {self.folder} cannot be used: {error.strerror}.") from error
        try:
            ensure_spool_id(self.folder)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"The spool folder {self.folder} cannot be used: {error.strerror}.") from error
        return descriptor


def _with_following(folder: Path) -> list[tuple[Segment, int]]:
    """Each segment but the newest, with the first record number of the next one."""
    return [(segment, after.first_seq) for segment, after in itertools.pairwise(segments(folder))]
