"""The part of a spool that the metadata store has not confirmed, as objects: it outlives the disk of its pod.

    {run}/spool/attempt-2-{name of the spool}/000000000401.jsonl   records from number 401 on, as in the spool's folder

An attempt stores its own at each commit and at its end, and removes what was delivered meanwhile. The next attempt, or
`dapo db deliver`, fetches what it finds into spool folders and delivers them; the metadata store knows by the spool's
name what it has already.
"""

import re
import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from dapo_core.naming import spool_prefix
from dapo_core.objectstore import ObjectNotFoundError, ObjectStore
from dapo_trainer.spool.records import decode
from dapo_trainer.spool.segments import (
    SEGMENT_SUFFIX,
    last_seq,
    read_cursor,
    segment_path,
    segments,
    set_spool_id,
    spool_id,
    write_cursor,
)

_KEY: Final = re.compile(rf"(attempt-\d+-([0-9a-f]+))/(\d{{12}}){re.escape(SEGMENT_SUFFIX)}")


@dataclass(frozen=True)
class _Stored:
    """A stored segment: its size in bytes, and the number of its last record."""

    size: int
    last: int


class StoredTail:
    """The undelivered records of one run's spools in the object store. Methods raise StoreError, and OSError when a
    spool folder cannot be read or written."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self._prefix = spool_prefix(run_id)
        self._lock = threading.Lock()
        self._stored: dict[str, _Stored] = {}  # by key, what `save` has stored
        self._fetched: dict[Path, dict[str, int]] = {}  # spool folder -> what it was fetched from: keys, their bytes

    def save(self, folder: Path, attempt: int) -> None:
        """Store the segments of the attempt's spool that are not delivered, and remove those that are. What is stored
        already is not sent again."""
        place = f"{self._prefix}attempt-{attempt}-{spool_id(folder)}/"
        with self._lock:
            for path in _undelivered(folder):
                data, key = _complete_lines(path), place + path.name
                if data and (key not in self._stored or self._stored[key].size != len(data)):
                    self._store.put_bytes(key, data)
                    self._stored[key] = _Stored(len(data), _last_number(data))
            cursor = read_cursor(folder)
            for key in [key for key, stored in self._stored.items() if stored.last <= cursor]:
                self._store.delete(key)
                del self._stored[key]

    def fetch(self, into: Path) -> list[Path]:
        """Write what is stored to spool folders under `into`, to be delivered by a `Delivery` each. Returns them."""
        for info in self._store.list(self._prefix):
            if (match := _KEY.fullmatch(info.key.removeprefix(self._prefix))) is None:
                continue
            try:
                data = self._store.get_bytes(info.key)
            except ObjectNotFoundError:  # its attempt has delivered it since
                continue
            folder, first = into / match[1], int(match[3])
            if folder not in self._fetched:
                folder.mkdir(parents=True, exist_ok=True)
                set_spool_id(folder, match[2])
                write_cursor(folder, first - 1)
            segment_path(folder, first).write_bytes(data)
            self._fetched.setdefault(folder, {})[info.key] = len(data)
        return list(self._fetched)

    def remove_delivered(self) -> int:
        """Remove the objects of fetched spools that were delivered whole, except those that their attempt has written
        since. Returns how many spools are left."""
        with self._lock:
            delivered = [folder for folder in self._fetched if read_cursor(folder) >= last_seq(folder)]
            sizes = {info.key: info.size for info in self._store.list(self._prefix)} if delivered else {}
            for folder in delivered:
                for key, size in self._fetched.pop(folder).items():
                    if sizes.get(key) == size:
                        self._store.delete(key)
            return len(self._fetched)


def _undelivered(folder: Path) -> list[Path]:
    """The segments that may hold undelivered records, oldest first; none of a spool that is still empty."""
    listed, cursor = segments(folder), read_cursor(folder)
    # A segment ends where the next one begins; the newest may still grow.
    older = [segment.path for segment, after in pairwise(listed) if after.first_seq - 1 > cursor]
    return older + [segment.path for segment in listed[-1:] if last_seq(folder) > cursor]


def _complete_lines(path: Path) -> bytes:
    """A segment's content, without a line that is being written; empty when the segment was removed."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _last_number(data: bytes) -> int:
    """The number of the last record in a segment's content."""
    records = (decode(line) for line in reversed(data.splitlines(keepends=True)))
    return next((record.seq for record in records if record is not None), 0)
