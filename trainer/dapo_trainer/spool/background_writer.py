"""Takes a trainer's records without making training wait, and writes them to the spool folder in a thread.

A training step hands its record over in microseconds; the thread numbers, writes and syncs it. Nothing here raises into
training, and nothing that training calls waits for a disk or a lock: the holder of a lock may have lost the GIL to a
third thread (the sender's, for one) for milliseconds. While the disk is full or broken, records wait in memory; beyond
a maximum the oldest are dropped. Every lost record is counted, logged, and reported by an event once events can be
written again.
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

from dapo_core.backoff import Backoff
from dapo_core.db import CheckpointRow, EventType
from dapo_trainer.spool.records import Kind, Record, step_body
from dapo_trainer.spool.segment_writer import SegmentFile, SpoolFolder

log = logging.getLogger(__name__)

MAX_BYTES: Final = 256 * 1024 * 1024  # a step with 60 metrics takes about 3 kB: some 80,000 steps
SEGMENT_BYTES: Final = 4 * 1024 * 1024
MAX_WAITING: Final = 10_000  # records in memory while the disk refuses writes: some 30 MB


@dataclass(frozen=True)
class SpoolStats:
    """Counts since the spool was opened. `lost` records are never delivered; `failures` are failed writes."""

    written: int
    lost: int
    failures: int


class Spool:
    """Appends records of one attempt to a spool folder (its files are described in `segments`).

    The constructor raises StoreError when the folder cannot be used or another process is writing it. No method raises.
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
        # Filled by any thread, emptied by ours; both are atomic. An event is set when what precedes it is on disk.
        self._waiting: deque[Record | threading.Event] = deque()
        self._wakeup: SimpleQueue[None] = SimpleQueue()
        self._batch: list[Record] = []  # being written
        self._synced: list[threading.Event] = []  # to be set when the batch is on disk
        self._changed = threading.Condition()  # guards the counts, and wakes a wait that ends early
        self._written = self._lost = self._failures = 0
        self._unreported = 0
        self._closing = False
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="dapo-spool", daemon=True)
        self._thread.start()

    def append(self, record: Record) -> None:
        """Take a record; it is numbered when it is written. Never raises, never waits."""
        if self._closing:
            self._count_lost(1)
            return
        if len(self._waiting) >= self._max_waiting:
            self._drop_oldest()
        self._enqueue(record)

    def _enqueue(self, item: Record | threading.Event) -> None:
        self._waiting.append(item)
        if self._wakeup.empty():
            self._wakeup.put(None)

    def _drop_oldest(self) -> None:
        """The disk has refused records for a long time: the oldest one makes room for a newer one."""
        try:
            if isinstance(self._waiting.popleft(), Record):
                self._count_lost(1)
        except IndexError:  # the thread has just taken them all
            return

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of a finished step. Values that are not numbers are left out; NaN and infinities become flags."""
        self._put("step", step, {"values": dict(values)})

    def event(
        self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None, dedup_key: str = ""
    ) -> None:
        """An event: a CamelCase reason and a sentence. Events with the same `dedup_key` are recorded once."""
        key = dedup_key or uuid.uuid4().hex
        self._put("event", step, {"type": type, "reason": reason, "message": message, "dedup_key": key})

    def checkpoint(self, row: CheckpointRow) -> None:
        """A new state of a checkpoint of this run."""
        fields = asdict(row)
        del fields["run_id"], fields["step"]
        # JSON has no NaN or infinity, and a loss that is not finite must not cost the record of the checkpoint.
        fields["metrics"] = {name: value for name, value in row.metrics.items() if math.isfinite(value)}
        self._put("checkpoint", row.step, {"made_by": fields.pop("attempt"), **fields})

    def samples(self, step: int, key: str, rows: int, size_bytes: int) -> None:
        """The samples of a step were stored under `key` in the object store."""
        self._put("samples", step, {"key": key, "rows": rows, "size_bytes": size_bytes})

    def _put(self, kind: Kind, step: int | None, body: Mapping[str, Any]) -> None:
        self.append(Record(0, kind, time.time(), self.attempt, step, body))

    @property
    def stats(self) -> SpoolStats:
        with self._changed:
            return SpoolStats(self._written, self._lost, self._failures)

    def sync(self, timeout_seconds: float) -> bool:
        """Wait until all that was appended so far is on disk. Returns False on timeout."""
        if not self._thread.is_alive():
            return self._is_empty()
        synced = threading.Event()
        self._enqueue(synced)
        return synced.wait(timeout_seconds)

    def close(self, timeout_seconds: float = 10.0) -> bool:
        """Write what is waiting, for at most `timeout_seconds`, and stop. Returns whether all was written."""
        with self._changed:
            self._closing = True
            self._give_up_at = time.monotonic() + timeout_seconds
            self._changed.notify_all()
        self._wakeup.put(None)
        self._thread.join(timeout_seconds + 1.0)
        return self._is_empty()

    def _is_empty(self) -> bool:
        return not self._waiting and not self._batch

    def _run(self) -> None:
        failures = 0
        while self._take():
            try:
                self._write()
                failures = 0
            except Exception as error:  # whatever it is, training goes on
                failures += 1
                self._count_failure(error, failures)
                if not self._wait_to_retry(self._backoff.delay(failures, random.random())):
                    break
        self._files.close()

    def _take(self) -> bool:
        """Wait for records and take them. Returns False when the spool is closed and all are written."""
        while not (self._waiting or self._batch or self._closing):
            self._wakeup.get()
        if not self._batch:
            while self._waiting and len(self._batch) < 1000:
                item = self._waiting.popleft()
                if isinstance(item, Record):
                    self._batch.append(item)
                else:
                    self._synced.append(item)
        return bool(self._batch or self._synced)

    def _write(self) -> None:
        # After a failure the same records get the same numbers: a reader may have seen them already.
        lines: list[bytes] = []
        for record in self._batch:
            if (line := _line(record, self._files.next_seq + len(lines))) is not None:
                lines.append(line)
        if lines:
            self._files.append(b"".join(lines), len(lines))
        self._count_lost(len(self._batch) - len(lines))
        with self._changed:
            self._written += len(lines)
        self._batch.clear()
        while self._synced:
            self._synced.pop().set()
        if (lost := self._files.trim()) is not None:
            self._count_lost(lost.count)
        self._report_lost()

    def _count_lost(self, count: int) -> None:
        with self._changed:
            self._lost += count
            self._unreported += count

    def _report_lost(self) -> None:
        with self._changed:
            count, self._unreported = self._unreported, 0
        if not count:
            return
        message = f"{count} records were lost: the spool {self.folder} is full, or its disk refuses writes."
        body = {"type": "Warning", "reason": "SpoolLost", "message": message, "dedup_key": uuid.uuid4().hex}
        # Not by `append`, where the report of a loss could drop one more record.
        self._enqueue(Record(0, "event", time.time(), self.attempt, None, body))
        log.warning("%s", message)

    def _count_failure(self, error: Exception, failures: int) -> None:
        with self._changed:
            self._failures += 1
        if failures == 1:
            log.warning("The spool %s cannot be written, its records wait in memory: %s", self.folder, error)
        if isinstance(error, OSError):
            try:
                self._files.remove_delivered()
            except OSError:
                log.debug("Delivered segments cannot be removed either", exc_info=True)

    def _wait_to_retry(self, seconds: float) -> bool:
        """Wait, cut short by `close`. Returns False when the timeout given to `close` has passed."""
        with self._changed:
            was_closing = self._closing
            self._changed.wait_for(lambda: self._closing and not was_closing, min(seconds, 0.2 if was_closing else 1e9))
            return self._give_up_at is None or time.monotonic() < self._give_up_at


def _line(record: Record, seq: int) -> bytes | None:
    """The record's line, or None for one that cannot be written as JSON."""
    try:
        body = record.body if record.kind != "step" else {**record.body, **step_body(record.body["values"])}
        return replace(record, seq=seq, body=body).encode()
    except Exception as error:  # whatever it is, the records after it are written
        log.warning("A %s record cannot be written: %s", record.kind, error)
        return None
