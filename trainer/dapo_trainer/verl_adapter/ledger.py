"""Which prompts are in flight and which groups have come back: shared by the agent loop's thread and the trainer's.

verl learns this by polling TransferQueue every two seconds; here whoever waits is woken by whoever finishes.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable

from dapo_trainer.groups.dynamic_sampling import GroupOutcome


class Ledger:
    """Keyed by partition (`train`, `val`). Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_flight: dict[str, set[str]] = defaultdict(set)
        self._finished: dict[str, list[GroupOutcome]] = defaultdict(list)
        self._error: BaseException | None = None

    def submit(self, partition: str, uids: Iterable[str]) -> None:
        with self._changed:
            self._in_flight[partition].update(uids)

    def finish(self, partition: str, outcomes: Iterable[GroupOutcome]) -> None:
        with self._changed:
            self._finished[partition] += outcomes
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let the next `take` raise: nobody may wait for groups that cannot come."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def in_flight(self, partition: str) -> int:
        """Prompts submitted whose groups were not taken yet: one that is back but untaken is not asked for again."""
        with self._changed:
            return len(self._in_flight[partition])

    def underway(self, partition: str) -> set[str]:
        """Which prompts `in_flight` counts."""
        with self._changed:
            return set(self._in_flight[partition])

    def take(self, partition: str, timeout_seconds: float) -> list[GroupOutcome]:
        """All groups finished since the last call; waits up to `timeout_seconds` for the first."""
        with self._changed:
            if not self._finished[partition] and self._error is None:
                self._changed.wait(timeout_seconds)
            if self._error is not None:
                raise self._error
            taken, self._finished[partition] = self._finished[partition], []
            self._in_flight[partition].difference_update(outcome.uid for outcome in taken)
            return taken
