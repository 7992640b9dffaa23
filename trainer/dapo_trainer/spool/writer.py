"""Appends whole lines to the segments of a spool folder, and keeps the folder within its bound."""

import fcntl
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from dapo_core.errors import StoreError
from dapo_trainer.spool.files import Segment, ensure_spool_id, last_seq, read_cursor, segment_path, segments


class SegmentFile:
    """An open segment. `size` is up to where it is whole; what a failed write left behind it is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = self._whole()
        os.ftruncate(self._descriptor, self.size)

    def _whole(self) -> int:
        """Up to the last line's end: a process that was killed may have left half a line."""
        data = self.path.read_bytes()
        return data.rfind(b"\n") + 1

    def append(self, data: bytes) -> None:
        """Write and sync `data`, or leave the file as it was and raise OSError."""
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
class Lost:
    """Records that were removed before they were delivered: how many, from number `first` to `last`."""

    count: int
    first: int
    last: int


class SpoolFolder:
    """The writing side of a spool folder; one process at a time. Raises StoreError when another one has it."""

    def __init__(
        self, folder: Path, max_bytes: int, segment_bytes: int, open_file: type[SegmentFile] = SegmentFile
    ) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        # A bound must leave room for more than the segment in use, which is never removed.
        self._segment_bytes = min(segment_bytes, max(1, max_bytes // 4))
        self._open_file = open_file
        self._file: SegmentFile | None = None
        self._lock = self._take_lock()
        self.next_seq = last_seq(folder) + 1

    def append(self, data: bytes, count: int) -> None:
        """Write the lines of `count` records, numbered from `next_seq` on, or nothing of them. Raises OSError."""
        if self._file is None:
            self._file = self._open_file(self._current_path())
        self._file.append(data)
        self.next_seq += count
        if self._file.size >= self._segment_bytes:
            self._file.close()
            self._file = None

    def _current_path(self) -> Path:
        """The newest segment while it has room, else a new one."""
        found = segments(self.folder)
        if found and found[-1].size() < self._segment_bytes:
            return found[-1].path
        return segment_path(self.folder, self.next_seq)

    def remove_delivered(self) -> None:
        """Remove the old segments that are delivered wholly, to make room now. Raises OSError."""
        cursor = read_cursor(self.folder)
        for segment, following in _with_following(self.folder):
            if following - 1 <= cursor:
                segment.path.unlink(missing_ok=True)

    def trim(self) -> Lost | None:
        """Come back under the bound, oldest segment first; what was not delivered then is lost, and told.

        What goes is the oldest, not the newest: a reader wants to know how a run is, and its start is told by the
        checkpoint's own metrics. Raises OSError.
        """
        if self._file is not None:
            return None  # looked at only when a segment was filled: the bound is kept within one segment
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
        return Lost(sum(last - first + 1 for first, last in lost), lost[0][0], lost[-1][1])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        os.close(self._lock)

    def _take_lock(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"The spool folder {self.folder} can not be used: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"The spool folder {self.folder} is written by another process.") from error
        try:
            ensure_spool_id(self.folder)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"The spool folder {self.folder} can not be used: {error.strerror}.") from error
        return descriptor


def _with_following(folder: Path) -> list[tuple[Segment, int]]:
    """Each segment but the newest, with the first number of the one after it."""
    found = segments(folder)
    return [(segment, after.first_seq) for segment, after in itertools.pairwise(found)]
