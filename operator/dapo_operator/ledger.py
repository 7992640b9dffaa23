"""Records as rows of the metadata store. Blocking: called from threads."""

import hashlib
import logging
from collections.abc import Sequence

from dapo_core.db import AlertRow, AttemptRow, EventRow, RejectedError, RunProgress, RunRow, open_reader, open_writer
from dapo_core.errors import StoreError
from dapo_operator.jobs.records import (
    AlertCleared,
    AlertRaised,
    AttemptEnded,
    AttemptStarted,
    EventTold,
    Record,
    RunCreated,
    RunState,
)

logger = logging.getLogger(__name__)


class Ledger:
    """One database, opened at its first use. Every method raises StoreError."""

    def __init__(self, url: str) -> None:
        self._writer, self._reader = open_writer(url), open_reader(url)

    def progress(self, run_ids: Sequence[str], metrics: Sequence[str], curves: Sequence[str]) -> dict[str, RunProgress]:
        """All runs in one read."""
        return self._reader.progress(run_ids, metrics, curves)

    def write_all(self, records: Sequence[tuple[str, Record]]) -> tuple[int, StoreError | None]:
        """Write them in order. Answers how many are done with, and what stopped it; a record that the database does
        not take is left out, since writing it again would not help."""
        for count, (run_id, record) in enumerate(records):
            try:
                self.write(run_id, record)
            except RejectedError as error:
                logger.error("The metadata store does not take a record of %s: %s", run_id, error)
            except StoreError as error:
                return count, error
        return len(records), None

    def write(self, run_id: str, record: Record) -> None:
        """Write one record."""
        match record:
            case RunCreated():
                row = RunRow(
                    run_id,
                    name=record.name,
                    namespace=record.namespace,
                    spec=record.spec,
                    created_at=record.created_at,
                    total_steps=record.total_steps,
                )
                self._writer.create_run(row)
            case RunState(state, reason, message, started, ended):
                self._writer.update_run_state(
                    run_id, state, reason=reason, message=message, started_at=started, ended_at=ended
                )
            case AttemptStarted(number, started, from_step):
                self._writer.start_attempt(AttemptRow(run_id, number, started, step_from=from_step))
            case AttemptEnded(number, ended, reason, message, code, counted):
                self._writer.end_attempt(
                    run_id, number, reason=reason, message=message, exit_code=code, counted=counted, ended_at=ended
                )
            case EventTold(at, event, attempt):
                key = hashlib.sha256(f"{attempt}/{event.reason}/{event.message}/{at:.0f}".encode()).hexdigest()[:24]
                row_of_event = EventRow(run_id, key, at, event.type, event.reason, event.message, attempt=attempt)
                self._writer.write_events(run_id, [row_of_event])
            case AlertRaised(rule, at, since, message, action):
                self._writer.raise_alert(AlertRow(run_id, rule, at, at, message, action, first_step=since))
            case AlertCleared(rule, at):
                self._writer.clear_alert(run_id, rule, at)
