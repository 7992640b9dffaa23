"""Where states of checkpoints are reported."""

from typing import Protocol

from dapo_core.db import CheckpointRow, EventType


class Journal(Protocol):
    """Where states of checkpoints are reported: `dapo_trainer.spool.Spool`."""

    def checkpoint(self, row: CheckpointRow) -> None: ...

    def event(self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None) -> None: ...

    def sync(self, timeout_seconds: float) -> bool: ...


class NullJournal:
    """A journal that discards everything, for commands that only read."""

    def checkpoint(self, row: CheckpointRow) -> None: ...

    def event(self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None) -> None: ...

    def sync(self, timeout_seconds: float) -> bool:
        return True
