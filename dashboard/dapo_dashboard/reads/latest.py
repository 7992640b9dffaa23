"""What was made last for each way of looking, shared by all who look in that way."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Of each key only the newest version is kept, and of keys those that were asked for last: memory does not grow as
    runs do."""

    def __init__(self, most_keys: int) -> None:
        self._most = most_keys
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """The key's value of that version; made by the first who asks for it, while the others wait."""
        entry = self._entry(key)
        with entry.lock:
            if entry.made is None or entry.made[0] != version:
                entry.made = (version, make())
            return entry.made[1]

    def _entry(self, key: Hashable) -> "_Entry[T]":
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
            return entry


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: tuple[Hashable, T] | None = None
