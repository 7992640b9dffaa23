"""Counts the responses whose engine left while they were generated, and how they went on."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field


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
