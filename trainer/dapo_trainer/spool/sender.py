"""Delivers a spool to the metadata store while training runs.

Each batch is written in a transaction that may be repeated, and only then does the cursor move past it: a sender that
is killed between the two sends the batch again, which changes nothing. A store that is down is retried forever.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from dapo_core.backoff import Backoff
from dapo_core.db import Receipt, RejectedError, StoreBehindError, WriteBatch
from dapo_core.errors import StoreError
from dapo_trainer.spool.records import Record, batch_of
from dapo_trainer.spool.segments import SpoolReader, last_seq, read_cursor, segments, spool_id, write_cursor

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH: Final = 200  # records of one transaction: some 12,000 points, which SQLite writes in 0.1 s
VERIFY_SECONDS: Final = 60.0  # how often the store is asked whether it still has what was delivered


class Sink(Protocol):
    """What a sender writes to: `dapo_core.db.MetadataWriter`, or a function fake in tests."""

    def write(self, run_id: str, batch: WriteBatch, receipt: Receipt | None = None) -> None: ...


Notify = Callable[[str, str], None]
"""Called at an outage, at its end, and for refused records, with a CamelCase reason and a sentence. Must not raise."""


def _ignore(_reason: str, _message: str) -> None:
    return None


class Delivery:
    """Delivers one spool folder. Not thread-safe."""

    def __init__(self, folder: Path, sink: Sink, run_id: str, notify: Notify = _ignore) -> None:
        self.folder = folder
        self._sink = sink
        self._run_id = run_id
        self._notify = notify
        self.cursor = read_cursor(folder)
        self.refused = 0
        self._reader = SpoolReader(folder, self.cursor)
        self._pending: list[Record] = []

    def deliver(self, limit: int = BATCH) -> int:
        """Deliver the next records and move the cursor. Returns their count; 0 when there are none.

        Raises StoreError when the store cannot take them now; the next call tries the same records again.
        """
        while records := self._pending or self._reader.read(limit):
            self._pending = records
            try:
                self._write(records, self.cursor)
            except StoreBehindError as error:
                self._rewind(error.seq)
                continue
            self._pending, self.cursor = [], records[-1].seq
            self._save_cursor()
            return len(records)
        return 0

    def verify(self) -> bool:
        """Whether the store has all that was delivered. After a restore from an older backup it may not: then what is
        missing is delivered next. Raises StoreError."""
        name = spool_id(self.folder)
        if name is None or self.cursor == 0:
            return True
        try:
            self._sink.write(self._run_id, WriteBatch(), Receipt(name, self.cursor, self.cursor))
        except StoreBehindError as error:
            self._rewind(error.seq)
            return False
        return True

    def oldest_seconds(self, now: float) -> float:
        """Age of the oldest record that was tried and is not delivered yet; 0 when there is none."""
        pending = self._pending  # replaced by the thread that delivers
        return max(0.0, now - pending[0].ts) if pending else 0.0

    def _rewind(self, seq: int) -> None:
        self._notify(
            "StoreBehind",
            f"The metadata store has only records up to {seq} of the {self.cursor} that were delivered, as after a "
            "restore from an older backup. Sending the rest again.",
        )
        # Trimming removes the oldest of those that were delivered.
        oldest = min((segment.first_seq for segment in segments(self.folder)), default=self.cursor + 1)
        missing = min(oldest, self.cursor + 1) - seq - 1
        self.cursor, self._pending = seq, []
        self._reader = SpoolReader(self.folder, seq)
        self._save_cursor()
        if missing > 0:
            self._notify(
                "SpoolLost",
                f"{missing} records, {seq + 1} to {seq + missing}, are missing from the metadata store, and are no "
                f"longer in the spool {self.folder}.",
            )

    def _save_cursor(self) -> None:
        try:
            write_cursor(self.folder, self.cursor)
        except OSError as error:  # a full disk: after a restart the records are sent again, which changes nothing
            log.warning("The cursor of %s cannot be written: %s", self.folder, error)

    def _write(self, records: list[Record], after: int) -> None:
        name, last = spool_id(self.folder), records[-1].seq
        receipt = Receipt(name, after, last) if name else None
        try:
            self._sink.write(self._run_id, _batch(self._run_id, records), receipt)
        except RejectedError as error:
            # One bad record must not block the others forever: halve the batch until it is alone, and skip it.
            if len(records) == 1:
                self._skip(records[0], error)
                self._sink.write(self._run_id, WriteBatch(), receipt)
                return
            middle = len(records) // 2
            self._write(records[:middle], after)
            self._write(records[middle:], records[middle - 1].seq)

    def _skip(self, record: Record, error: RejectedError) -> None:
        self.refused += 1
        log.error("Record %d of %s was refused: %s", record.seq, self.folder, error)
        self._notify("RecordRefused", f"A {record.kind} record of step {record.step} was refused: {error}")


def _batch(run_id: str, records: list[Record]) -> WriteBatch:
    try:
        return batch_of(run_id, records)
    except (TypeError, KeyError, AttributeError) as error:
        raise RejectedError(f"it cannot be decoded ({error})") from error


def drain(folder: Path, sink: Sink, run_id: str, timeout_seconds: float) -> bool:
    """Deliver what is left in a spool, without a thread. Returns whether all was delivered; never raises StoreError.

    `dapo run` calls it when an attempt's processes are gone.
    """
    delivery, backoff, failures = Delivery(folder, sink, run_id), Backoff(0.1, 5.0), 0
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            if delivery.deliver() == 0 and delivery.verify():
                return True
            failures = 0
        except StoreError as error:
            failures += 1
            if time.monotonic() >= deadline:
                log.warning("%s", error)
                return False
            time.sleep(max(0.0, min(backoff.delay(failures, random.random()), deadline - time.monotonic())))


@dataclass(frozen=True)
class Lag:
    """How far the store is behind the spool: undelivered records, and the age in seconds of the oldest tried one."""

    records: int
    seconds: float


class Sender:
    """A thread that delivers a spool folder, and what is left in `earlier` ones, of attempts that ended."""

    def __init__(
        self,
        spool_folder: Path,
        sink: Sink,
        run_id: str,
        *,
        earlier: Sequence[Path] = (),
        notify: Notify = _ignore,
        poll_seconds: float = 0.5,
        verify_seconds: float = VERIFY_SECONDS,
        backoff: Backoff = Backoff(0.5, 30.0),  # noqa: B008 - frozen
    ) -> None:
        self._deliveries = [Delivery(folder, sink, run_id, notify) for folder in (*earlier, spool_folder)]
        self._sink, self._run_id, self._notify = sink, run_id, notify
        self._poll_seconds = poll_seconds
        self._backoff = backoff
        self._changed = threading.Condition()
        self._hurry = self._closing = False
        self._failures = 0
        self._verified_at = -VERIFY_SECONDS
        self._verify_seconds = verify_seconds
        self._lag = Lag(0, 0.0)
        self._thread = threading.Thread(target=self._run, name="dapo-sender", daemon=True)
        self._thread.start()

    @property
    def lag(self) -> Lag:
        """As last measured by the thread, some seconds ago at most."""
        return self._lag

    def add_earlier(self, folders: Sequence[Path]) -> None:
        """Also deliver these spools, of attempts that ended."""
        added = [Delivery(folder, self._sink, self._run_id, self._notify) for folder in folders]
        with self._changed:
            self._deliveries = [*added, *self._deliveries]
            self._hurry = True
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Deliver all that is in the spool now. Returns whether the store has it within `timeout_seconds`."""
        targets = [(delivery, last_seq(delivery.folder)) for delivery in self._deliveries]
        with self._changed:
            asked = time.monotonic()
            self._verify_seconds, usual = 0.0, self._verify_seconds
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: (
                    self._verified_at >= asked
                    and all(delivery.cursor >= target for delivery, target in targets if delivery in self._deliveries)
                ),
                timeout_seconds,
            )
            self._verify_seconds = usual
            return done

    def close(self, timeout_seconds: float = 10.0) -> bool:
        """Flush, for at most `timeout_seconds`, and stop. Returns whether all was delivered."""
        done = self.flush(timeout_seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(5.0)
        return done

    def _run(self) -> None:
        while not self._closing:
            try:
                count = sum(self._each(Delivery.deliver))
                more = count > 0 or not self._verified()
                self._report_success()
                delay = 0.0 if more else self._poll_seconds
            except Exception as error:  # a thread that ends would stop all delivery silently
                self._report_failure(error)
                delay = self._backoff.delay(self._failures, random.random())
            self._measure_lag()
            self._wait(delay)

    def _verified(self) -> bool:
        """Every `verify_seconds`, whether the store has all that was delivered; True in between."""
        began = time.monotonic()
        if began - self._verified_at < self._verify_seconds:
            return True
        if not all(self._each(Delivery.verify)):
            return False
        self._verified_at = began
        return True

    def _each(self, work: Callable[[Delivery], T]) -> list[T]:
        """Do `work` for each spool. A folder of an earlier attempt that cannot be read is left out from now on: it must
        not hold up this attempt's own."""
        results = []
        for delivery in self._deliveries:
            try:
                results.append(work(delivery))
            except OSError as error:
                if delivery is self._deliveries[-1]:
                    raise
                with self._changed:
                    self._deliveries = [other for other in self._deliveries if other is not delivery]
                log.warning("The spool %s cannot be read: %s", delivery.folder, error)
                self._notify(
                    "SpoolUnreadable",
                    f"Records of an earlier attempt are not delivered: {delivery.folder} cannot be read ({error}). "
                    "The next attempt tries again.",
                )
        return results

    def _measure_lag(self) -> None:
        now = time.time()
        records = sum(max(0, last_seq(delivery.folder) - delivery.cursor) for delivery in self._deliveries)
        self._lag = Lag(records, max(delivery.oldest_seconds(now) for delivery in self._deliveries))

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._hurry or self._closing, seconds)
            self._hurry = False

    def _report_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("The metadata store cannot be written, its records wait in the spool: %s", error)
            self._notify("StoreUnreachable", f"Records wait in the spool: {error}")

    def _report_success(self) -> None:
        if self._failures:
            log.info("The metadata store is back after %d failures", self._failures)
            self._notify("StoreReachable", f"The metadata store is back after {self._failures} failures.")
        self._failures = 0
