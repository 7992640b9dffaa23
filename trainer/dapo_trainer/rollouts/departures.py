"""Tells those who wait for an engine's answer that it has left: one that is dead or wedged may never answer.

Counts the responses whose engine left while they were generated, and how they went on.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Departures:
    """Engines by the address under which the router knows them, which no other engine gets. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._leaving: set[str] = set()
        self._left: set[str] = set()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        # Called with the address and the cause when a request finds an engine dead; None where engines do not come and
        # go, and a dead one ends the attempt.
        self.on_dead: Callable[[str, str], None] | None = None

    def has_left(self, address: str) -> bool:
        """Whether no answer comes from there any more."""
        with self._changed:
            return address in self._left

    def is_leaving(self, address: str) -> bool:
        """Whether what is unfinished there goes on elsewhere: the engine has left, or hands over."""
        with self._changed:
            return address in self._left or address in self._leaving

    def hand_over(self, addresses: Iterable[str]) -> None:
        """The engines answer with what they have, and leave."""
        with self._changed:
            self._leaving.update(addresses)

    def announce(self, address: str) -> None:
        """The engine has left: whoever waits for it is notified."""
        with self._changed:
            self._left.add(address)
            told = list(self._waiting.get(address, ()))
        for leave in told:
            leave()

    def wait_for_answers(self, addresses: Iterable[str], timeout_seconds: float) -> bool:
        """Wait until nobody waits for these engines. Returns whether that is so."""
        watched = list(addresses)
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(address in self._waiting for address in watched), timeout_seconds
            )

    @contextmanager
    def told(self, address: str, leave: Callable[[], None]) -> Iterator[None]:
        """Call `leave` when the engine leaves during the block, from any thread; at once if it has left."""
        with self._changed:
            gone = address in self._left
            self._waiting.setdefault(address, []).append(leave)
        if gone:
            leave()
        try:
            yield
        finally:
            with self._changed:
                self._waiting[address].remove(leave)
                if not self._waiting[address]:
                    del self._waiting[address]
                self._changed.notify_all()


@dataclass
class MovedResponses:
    """Since the last `taken`. Thread-safe."""

    continued: int = 0
    restarted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, tokens: Iterable[int]) -> None:
        """Unfinished responses go on with another engine: from that many tokens each, or from the prompt."""
        kept = [count > 0 for count in tokens]
        with self._lock:
            self.continued += sum(kept)
            self.restarted += len(kept) - sum(kept)

    def taken(self) -> tuple[int, int]:
        """(continued, restarted) since the last call."""
        with self._lock:
            counts = self.continued, self.restarted
            self.continued = self.restarted = 0
        return counts
