"""The spool: where a trainer's news are safe before anybody else has them.

A training step hands its record over in microseconds; a thread numbers, writes and syncs it. Nothing here raises into
training, and nothing that training calls waits for a disk or for a lock: whoever holds one may have lost Python's own
to a third thread, the sender's say, for milliseconds. While the disk is full or broken, records wait in memory, the
oldest of which are given up past a bound; every record that is lost is counted, logged, and told by an event once
events can be written again.
"""

import logging
import math
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from dapo_core.db import CheckpointRow, EventType
from dapo_core.run.backoff import Backoff
from dapo_trainer.spool.files import SpoolReader, read_cursor, read_records
from dapo_trainer.spool.records import Kind, Record, step_body
from dapo_trainer.spool.writer import SegmentFile, SpoolFolder

__all__ = ["Record", "Spool", "SpoolReader", "SpoolStats", "read_cursor", "read_records"]

log = logging.getLogger(__name__)

MAX_BYTES: Final = 256 * 1024 * 1024  # 60 metrics a step take about 3 kB: some 80,000 steps
SEGMENT_BYTES: Final = 4 * 1024 * 1024
MAX_WAITING: Final = 10_000  # records in memory while the disk refuses them, some 30 MB


@dataclass(frozen=True)
class SpoolStats:
    """Counts since the spool was opened. `lost` records will never be delivered; `failures` are of the disk."""

    written: int
    lost: int
    failures: int


class Spool:
    """Appends records of one attempt to a spool folder (see `spool_files` for its files).

    Raises StoreError at the start when the folder can not be used or another process writes it; never afterwards.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        *,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        max_waiting: int = MAX_WAITING,
        backoff: Backoff = Backoff(0.2, 10.0),  # noqa: B008 - frozen
        open_file: type[SegmentFile] = SegmentFile,
    ) -> None:
        self.folder = folder
        self.attempt = attempt
        self._files = SpoolFolder(folder, max_bytes, segment_bytes, open_file)
        self._backoff = backoff
        self._max_waiting = max_waiting
        # Filled by anybody, emptied by the thread; both are atomic. A mark stands behind what somebody waits for.
        self._waiting: deque[Record | threading.Event] = deque()
        self._roused: SimpleQueue[None] = SimpleQueue()
        self._taken: list[Record] = []  # numbered and on their way to the disk
        self._marks: list[threading.Event] = []
        self._changed = threading.Condition()  # for counts, and for a pause that ends early
        self._written = self._lost = self._failures = 0
        self._untold = 0
        self._closing = False
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="dapo-spool", daemon=True)
        self._thread.start()

    def append(self, record: Record) -> None:
        """Take a record; its `seq` is given when it is written. Never raises, never waits."""
        if self._closing:
            self._count_lost(1)
            return
        if len(self._waiting) >= self._max_waiting:
            self._push_out()
        self._hand_over(record)

    def _hand_over(self, what: Record | threading.Event) -> None:
        self._waiting.append(what)
        if self._roused.empty():
            self._roused.put(None)

    def _push_out(self) -> None:
        """The disk refuses records for long: the oldest one gives its place to a newer one."""
        try:
            if isinstance(self._waiting.popleft(), Record):
                self._count_lost(1)
        except IndexError:  # they have just been taken
            return

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of a finished step. Values that are no numbers are left out; NaN and infinities become flags."""
        self._put("step", step, {"values": dict(values)})

    def event(
        self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None, dedup_key: str = ""
    ) -> None:
        """Something happened: a CamelCase reason and a sentence. Two events with one `dedup_key` are one."""
        key = dedup_key or uuid.uuid4().hex
        self._put("event", step, {"type": type, "reason": reason, "message": message, "dedup_key": key})

    def checkpoint(self, row: CheckpointRow) -> None:
        """A new state of a checkpoint of this run."""
        fields = asdict(row)
        del fields["run_id"], fields["step"]
        # A loss that is not finite is no reason to know nothing of the checkpoint; JSON has no word for it.
        fields["metrics"] = {name: value for name, value in row.metrics.items() if math.isfinite(value)}
        self._put("checkpoint", row.step, {"made_by": fields.pop("attempt"), **fields})

    def samples(self, step: int, key: str, rows: int, size_bytes: int) -> None:
        """The samples of a step lie under `key` in the object store."""
        self._put("samples", step, {"key": key, "rows": rows, "size_bytes": size_bytes})

    def _put(self, kind: Kind, step: int | None, body: Mapping[str, Any]) -> None:
        self.append(Record(0, kind, time.time(), self.attempt, step, body))

    @property
    def stats(self) -> SpoolStats:
        with self._changed:
            return SpoolStats(self._written, self._lost, self._failures)

    def sync(self, timeout_seconds: float) -> bool:
        """Wait until all that was appended so far is on disk; whether it is."""
        if not self._thread.is_alive():
            return self._is_empty()
        mark = threading.Event()
        self._hand_over(mark)
        return mark.wait(timeout_seconds)

    def close(self, timeout_seconds: float = 10.0) -> bool:
        """Write what is waiting, for at most `timeout_seconds`, and end; whether all was written."""
        with self._changed:
            self._closing = True
            self._give_up_at = time.monotonic() + timeout_seconds
            self._changed.notify_all()
        self._roused.put(None)
        self._thread.join(timeout_seconds + 1.0)
        return self._is_empty()

    def _is_empty(self) -> bool:
        return not self._waiting and not self._taken

    def _run(self) -> None:
        failures = 0
        while self._take():
            try:
                self._write()
                failures = 0
            except Exception as error:  # whatever it is, training goes on
                failures += 1
                self._note_failure(error, failures)
                if not self._pause(self._backoff.delay(failures, random.random())):
                    break
        self._files.close()

    def _take(self) -> bool:
        """Wait for records and take them; False when the spool is closed and all are written."""
        while not (self._waiting or self._taken or self._closing):
            self._roused.get()
        if not self._taken:
            while self._waiting and len(self._taken) < 1000:
                what = self._waiting.popleft()
                if isinstance(what, Record):
                    self._taken.append(what)
                else:
                    self._marks.append(what)
        return bool(self._taken or self._marks)

    def _write(self) -> None:
        # After a failure the same records get the same numbers, so that a reader who saw them sees no others.
        lines: list[bytes] = []
        for record in self._taken:
            if (line := _line(record, self._files.next_seq + len(lines))) is not None:
                lines.append(line)
        if lines:
            self._files.append(b"".join(lines), len(lines))
        self._count_lost(len(self._taken) - len(lines))
        with self._changed:
            self._written += len(lines)
        self._taken.clear()
        while self._marks:
            self._marks.pop().set()
        if (lost := self._files.trim()) is not None:
            self._count_lost(lost.count)
        self._tell_lost()

    def _count_lost(self, count: int) -> None:
        with self._changed:
            self._lost += count
            self._untold += count

    def _tell_lost(self) -> None:
        with self._changed:
            count, self._untold = self._untold, 0
        if not count:
            return
        message = f"{count} records were lost: the spool {self.folder} is full, or its disk refuses writes."
        body = {"type": "Warning", "reason": "SpoolLost", "message": message, "dedup_key": uuid.uuid4().hex}
        # Not by `append`, whose bound would let the news of a loss push out one more record.
        self._hand_over(Record(0, "event", time.time(), self.attempt, None, body))
        log.warning("%s", message)

    def _note_failure(self, error: Exception, failures: int) -> None:
        with self._changed:
            self._failures += 1
        if failures == 1:
            log.warning("The spool %s can not be written, its records wait in memory: %s", self.folder, error)
        if isinstance(error, OSError):
            try:
                self._files.remove_delivered()
            except OSError:
                log.debug("Delivered segments can not be removed either", exc_info=True)

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try, cut short by `close`; False when the time that `close` gave is over."""
        with self._changed:
            was_closing = self._closing
            self._changed.wait_for(lambda: self._closing and not was_closing, min(seconds, 0.2 if was_closing else 1e9))
            return self._give_up_at is None or time.monotonic() < self._give_up_at


def _line(record: Record, seq: int) -> bytes | None:
    """The record's line, or None for one that can not be written as JSON."""
    body = record.body if record.kind != "step" else {**record.body, **step_body(record.body["values"])}
    try:
        return replace(record, seq=seq, body=body).encode()
    except (TypeError, ValueError) as error:
        log.warning("A %s record can not be written: %s", record.kind, error)
        return None
