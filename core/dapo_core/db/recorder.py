"""Writes what happens to runs to the metadata store: in order, and each entry until the store has taken it."""

import hashlib
import logging
import threading
from collections import deque
from typing import Final

from dapo_core.db import (
    AlertRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    ForeignRunError,
    MetadataWriter,
    RejectedError,
    RunRow,
    WriteBatch,
)
from dapo_core.errors import StoreError
from dapo_core.run.entries import (
    AlertCleared,
    AlertRaised,
    AttemptEnded,
    AttemptStarted,
    Entry,
    EventOccurred,
    RunChanged,
    RunCreated,
)

log = logging.getLogger(__name__)

# More than any run's own entries; a store that is down for days must not fill the memory.
KEPT: Final = 1000


class Recorder:
    """Entries that the store cannot take now are kept, the newest `kept` of them, and written before later ones.

    `add` may be called from any thread and does not block. `flush` blocks; one thread at a time may call it.
    """

    def __init__(self, writer: MetadataWriter, kept: int = KEPT) -> None:
        self._writer = writer
        self._waiting: deque[tuple[str, Entry | CheckpointRow]] = deque(maxlen=kept)
        self._lock = threading.Lock()
        # Runs whose ID somebody else has: what happens to them is not written into that run's rows.
        self._foreign: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many entries are not written yet."""
        return len(self._waiting)

    def add(self, run_id: str, *entries: Entry | CheckpointRow) -> None:
        """Append entries of one run; a later `flush` writes them."""
        with self._lock:
            self._waiting.extend((run_id, entry) for entry in entries)

    def probe(self) -> StoreError | None:
        """Why the store cannot be written now; None when it can."""
        try:
            self._writer.probe()
        except StoreError as error:
            return error
        return None

    def flush(self, limit: int | None = None) -> StoreError | None:
        """Write what is waiting, at most `limit` entries. Returns the error that stopped it, None if none did.

        An entry that the database rejects is logged and dropped: a retry would not help.
        """
        count = 0
        while self._waiting and (limit is None or count < limit):
            first = self._waiting[0]
            try:
                if first[0] not in self._foreign:
                    write(self._writer, *first)
            except ForeignRunError as error:
                self._foreign.add(first[0])
                log.error("Could not record %s: %s", first[0], error)
            except RejectedError as error:
                log.error("The metadata store rejected a record of %s: %s", first[0], error)
            except StoreError as error:
                return error
            count += 1
            with self._lock:
                # While it was written, newer entries may have pushed it out.
                if self._waiting and self._waiting[0] is first:
                    self._waiting.popleft()
        return None


def write(writer: MetadataWriter, run_id: str, entry: Entry | CheckpointRow) -> None:
    """Write one entry. Raises StoreError, RejectedError when the entry itself is at fault."""
    match entry:
        case RunCreated(name, namespace, spec, created, steps):
            writer.create_run(RunRow(run_id, name, namespace, spec, created_at=created, total_steps=steps))
        case RunChanged(state, reason, message, started, ended):
            writer.update_run_state(run_id, state, reason=reason, message=message, started_at=started, ended_at=ended)
        case AttemptStarted(number, started, from_step):
            writer.start_attempt(AttemptRow(run_id, number, started, step_from=from_step))
        case AttemptEnded(number, ended, reason, message, code, counted):
            writer.end_attempt(
                run_id, number, reason=reason, message=message, exit_code=code, counted=counted, ended_at=ended
            )
        case EventOccurred(at, kind, reason, message, attempt, step):
            row = EventRow(run_id, _key(entry), at, kind, reason, message, attempt=attempt, step=step)
            writer.write_events(run_id, [row])
        case AlertRaised(rule, at, since, message, action):
            writer.raise_alert(AlertRow(run_id, rule, at, at, message, action, first_step=since))
        case AlertCleared(rule, at):
            writer.clear_alert(run_id, rule, at)
        case CheckpointRow():
            writer.write(run_id, WriteBatch(checkpoints=[entry]))


def _key(event: EventOccurred) -> str:
    content = f"{event.attempt}/{event.reason}/{event.message}/{event.at:.0f}"
    return hashlib.sha256(content.encode()).hexdigest()[:24]
