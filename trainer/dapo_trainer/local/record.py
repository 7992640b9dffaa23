"""A run's entries in the metadata store, as its supervisor records them."""

import time
from pathlib import Path

from dapo_core.db import ENDED_STATES, AttemptRow, EventType, MetadataWriter, RunState
from dapo_core.db.recorder import Recorder
from dapo_core.run.entries import (
    AlertCleared,
    AlertRaised,
    AttemptEnded,
    AttemptStarted,
    Entry,
    EventOccurred,
    RunChanged,
)
from dapo_core.run.guards import Alert
from dapo_trainer.local.run_view import Note
from dapo_trainer.spool import drain

# How long a store that is down may hold up a run; the rest is delivered when the run is resumed.
DELIVER_SECONDS = 10.0


class StoreRecord:
    """Writes at once. What the store cannot take is kept and written before the next entry."""

    def __init__(self, writer: MetadataWriter, run_id: str) -> None:
        self._writer, self._run_id = writer, run_id
        self._recorder = Recorder(writer)

    def attempt_started(self, attempt: int, at: float) -> None:
        self._write(AttemptStarted(attempt, at))

    def attempt_ended(self, ended: AttemptRow, counted: bool | None) -> None:
        at, reason, message = ended.ended_at or time.time(), ended.reason or "", ended.message or ""
        self._write(AttemptEnded(ended.attempt, at, reason, message, ended.exit_code, counted))

    def state(self, state: RunState, reason: str, message: str) -> None:
        now = time.time()
        self._write(RunChanged(state, reason, message, now, now if state in ENDED_STATES else None))

    def event(self, note: Note, attempt: int, step: int | None) -> None:
        kind: EventType = "Warning" if note.warning else "Normal"
        self._write(EventOccurred(note.at, kind, note.reason, note.message, attempt or None, step))

    def alert_raised(self, alert: Alert, at: float) -> None:
        self._write(AlertRaised(alert.rule, at, alert.since, alert.message, alert.action))

    def alert_cleared(self, rule: str, at: float) -> None:
        self._write(AlertCleared(rule, at))

    def deliver(self, spool: Path) -> None:
        if spool.is_dir():
            drain(spool, self._writer, self._run_id, DELIVER_SECONDS)

    def _write(self, entry: Entry) -> None:
        self._recorder.add(self._run_id, entry)
        self._recorder.flush()
