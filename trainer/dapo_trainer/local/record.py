"""A run's rows in the metadata store, as its supervisor writes them."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from dapo_core.db import ENDED_STATES, AlertRow, AttemptRow, EventRow, MetadataWriter, RejectedError, RunState
from dapo_core.errors import StoreError
from dapo_core.run.guards import Alert
from dapo_trainer.local.ports import Ended
from dapo_trainer.local.view_model import Note
from dapo_trainer.spool.sender import drain

# More than any run's own events; a store that is down for days must not fill the memory.
KEPT = 1000
# What a store that is down costs a run that wants to go on; the rest is delivered when the run is resumed.
DELIVER_SECONDS = 10.0


class StoreRecord:
    """Rows that a store can't take now are kept and written, in order, before the next ones."""

    def __init__(self, writer: MetadataWriter, run_id: str) -> None:
        self._writer = writer
        self._run_id = run_id
        self._waiting: deque[Callable[[], None]] = deque(maxlen=KEPT)
        self._events = 0
        self._opened = time.time()

    def attempt_started(self, attempt: int, at: float) -> None:
        row = AttemptRow(self._run_id, attempt, started_at=at)
        self._write(lambda: self._writer.start_attempt(row))

    def attempt_ended(self, ended: Ended, counted: bool | None) -> None:
        def end() -> None:
            self._writer.end_attempt(
                self._run_id,
                ended.attempt,
                reason=ended.reason,
                message=ended.message,
                exit_code=ended.exit_code,
                counted=counted,
                ended_at=ended.ended_at,
            )

        self._write(end)

    def state(self, state: RunState, reason: str, message: str) -> None:
        now = time.time()
        ended_at = now if state in ENDED_STATES else None

        def change() -> None:
            self._writer.update_run_state(
                self._run_id, state, reason=reason, message=message, started_at=now, ended_at=ended_at
            )

        self._write(change)

    def event(self, note: Note, attempt: int, step: int | None) -> None:
        self._events += 1
        row = EventRow(
            run_id=self._run_id,
            dedup_key=f"supervisor/{self._opened:.3f}/{self._events}",
            ts=note.at,
            type="Warning" if note.warning else "Normal",
            reason=note.reason,
            message=note.message,
            attempt=attempt or None,
            step=step,
        )
        self._write(lambda: self._writer.write_events(self._run_id, [row]))

    def alert_raised(self, alert: Alert, at: float) -> None:
        row = AlertRow(self._run_id, alert.rule, at, at, alert.message, alert.action, alert.since)
        self._write(lambda: self._writer.raise_alert(row))

    def alert_cleared(self, rule: str, at: float) -> None:
        self._write(lambda: self._writer.clear_alert(self._run_id, rule, at))

    def deliver(self, spool: Path) -> None:
        if spool.is_dir():
            drain(spool, self._writer, self._run_id, DELIVER_SECONDS)

    def _write(self, action: Callable[[], None]) -> None:
        self._waiting.append(action)
        while self._waiting:
            try:
                self._waiting[0]()
            except RejectedError:
                pass  # no later try would fare better
            except StoreError:
                return
            self._waiting.popleft()
