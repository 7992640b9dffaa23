"""A pod's log as objects: bounded in the store, and in memory while the store is away."""

import threading
from collections.abc import Iterator

from dapo_core.objectstore import ObjectStore
from dapo_core.run.pod_logs import KEPT_ATTEMPTS, PART_BYTES, PodLog, logs_prefix, parse_log_key, parts_left_out


class LogParts:
    """The parts of one log. Methods may be called by several threads; `save` by one at a time."""

    def __init__(self, run_id: str, log: PodLog) -> None:
        self._run_id, self._log = run_id, log
        self._lock = threading.Lock()
        self._unsaved: dict[int, bytearray] = {}  # by number; those that were saved and are full are not kept
        self._current = 1
        self._changed: set[int] = set()
        self._deleted = 1  # numbers up to this one need not be looked at again

    def add(self, data: bytes) -> None:
        """Append to the log."""
        with self._lock:
            while data:
                part = self._unsaved.setdefault(self._current, bytearray())
                taken, data = data[: PART_BYTES - len(part)], data[PART_BYTES - len(part) :]
                part += taken
                self._changed.add(self._current)
                if len(part) == PART_BYTES:
                    self._current += 1
            for number in parts_left_out(self._current):
                self._unsaved.pop(number, None)
                self._changed.discard(number)

    @property
    def changed(self) -> bool:
        """Whether there is something to save."""
        return bool(self._changed)

    def save(self, store: ObjectStore) -> None:
        """Store what was added, delete what is no longer kept. Raises StoreError; the next call goes on from there."""
        for number, data in self._pending():
            store.put_bytes(self._log.key(self._run_id, number), data)
            with self._lock:
                part = self._unsaved.get(number)
                if part is not None and len(part) == len(data):
                    self._changed.discard(number)
                    if len(data) == PART_BYTES:
                        del self._unsaved[number]
        for number in parts_left_out(self._current):
            if number > self._deleted:
                store.delete(self._log.key(self._run_id, number))
                self._deleted = number

    def _pending(self) -> Iterator[tuple[int, bytes]]:
        with self._lock:
            numbers = sorted(self._changed)
        for number in numbers:
            with self._lock:
                data = bytes(self._unsaved.get(number, b""))
            if data:
                yield number, data


def delete_old_logs(store: ObjectStore, run_id: str, attempt: int) -> None:
    """Delete the logs of attempts long before this one. Raises StoreError."""
    for info in list(store.list(logs_prefix(run_id))):
        parsed = parse_log_key(run_id, info.key)
        if parsed is not None and parsed[0].attempt <= attempt - KEPT_ATTEMPTS:
            store.delete(info.key)
