"""The news of an attempt, read from its spool while the trainer writes it."""

import math
from collections.abc import Sequence
from pathlib import Path

from dapo_trainer.local.ports import Step
from dapo_trainer.local.view_model import Note
from dapo_trainer.local.words import size
from dapo_trainer.records import Record
from dapo_trainer.spool import read_records


class SpoolFeed:
    """Reads on from where the last look ended. A spool that is not there yet has no news."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._seq = 0

    def read(self) -> Sequence[Step | Note]:
        if not self._spool.is_dir():
            return []
        news: list[Step | Note] = []
        for record in read_records(self._spool, self._seq):
            self._seq = record.seq
            if (one := news_of(record)) is not None:
                news.append(one)
        return news


def news_of(record: Record) -> Step | Note | None:
    """What a record means to whoever watches; None for what is not shown."""
    if record.kind == "step":
        finite = {name: value if math.isfinite(value) else None for name, value in record.numbers.items()}
        return Step(record.attempt, record.step or 0, record.ts, finite)
    if record.kind == "event":
        body = record.body
        return Note(record.ts, str(body["reason"]), str(body["message"]), warning=body.get("type") == "Warning")
    if record.kind == "checkpoint" and record.body.get("state") == "committed":
        written = record.body.get("size_bytes")
        return Note(record.ts, "Checkpoint", f"step {record.step} committed{f', {size(written)}' if written else ''}")
    return None
