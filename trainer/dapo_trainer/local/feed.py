"""The news of an attempt, read from its spool while the trainer writes it."""

from collections.abc import Sequence
from pathlib import Path

from dapo_trainer.local.ports import Step
from dapo_trainer.local.view_model import Note
from dapo_trainer.spool.records import Record
from dapo_trainer.spool.spool import SpoolReader


class SpoolFeed:
    """Reads on from where the last look ended. A spool that is not there yet has no news."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._reader: SpoolReader | None = None

    def read(self) -> Sequence[Step | Note]:
        if self._reader is None:
            if not self._spool.is_dir():
                return []
            self._reader = SpoolReader(self._spool)
        return [news for record in self._reader.read() if (news := news_of(record)) is not None]


def news_of(record: Record) -> Step | Note | None:
    """What a record means to whoever watches; None for what is not shown (a checkpoint comes with an event)."""
    if record.kind == "step":
        return Step(record.attempt, record.step or 0, record.ts, record.numbers)
    if record.kind == "event":
        body = record.body
        return Note(record.ts, str(body["reason"]), str(body["message"]), warning=body.get("type") == "Warning")
    return None
