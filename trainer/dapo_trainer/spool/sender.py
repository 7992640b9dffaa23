"""From the spool to the metadata store, beside training.

Each record is written by a transaction that may be repeated, and only then does the cursor go past it: a sender that is
killed between the two sends the batch once more, which changes nothing. A store that is down is tried again for ever.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from dapo_core.db import Batch, Receipt, RejectedError, StoreBehindError
from dapo_core.errors import StoreError
from dapo_core.run.backoff import Backoff
from dapo_trainer.spool.files import SpoolReader, last_seq, read_cursor, spool_id, write_cursor
from dapo_trainer.spool.records import Record, batch_of

log = logging.getLogger(__name__)

BATCH: Final = 200  # records a transaction: some 12,000 points, which SQLite takes in 0.1 s
VERIFY_SECONDS: Final = 60.0  # how often the store of a quiet run is asked whether it still has what it got


class Sink(Protocol):
    """What a sender writes to: `dapo_core.db.MetadataWriter`, or a function fake in tests."""

    def write(self, run_id: str, batch: Batch, receipt: Receipt | None = None) -> None: ...


Tell = Callable[[str, str], None]
"""Told of an outage, its end, and of refused records: a CamelCase reason and a sentence. Must not raise."""


def _silent(_reason: str, _message: str) -> None:
    return None


class Delivery:
    """One spool folder on its way to the store. Not for several threads."""

    def __init__(self, folder: Path, sink: Sink, run_id: str, tell: Tell = _silent) -> None:
        self.folder = folder
        self._sink = sink
        self._run_id = run_id
        self._tell = tell
        self.cursor = read_cursor(folder)
        self.refused = 0
        self._reader = SpoolReader(folder, self.cursor)
        self._in_hand: list[Record] = []

    def deliver(self, limit: int = BATCH) -> int:
        """Deliver the next records and move the cursor; how many there were. Raises StoreError: try again later."""
        if not self._in_hand:
            self._in_hand = self._reader.read(limit)
        if not self._in_hand:
            return 0
        try:
            self._write(self._in_hand, self.cursor)
        except StoreBehindError as error:
            self._go_back(error.seq)
            return self.deliver(limit)
        count, self.cursor = len(self._in_hand), self._in_hand[-1].seq
        self._in_hand = []
        self._save_cursor()
        return count

    def verify(self) -> bool:
        """Whether the store has all that was delivered; if not, because it was restored from an older copy, what it
        lacks is delivered next. Raises StoreError."""
        name = spool_id(self.folder)
        if name is None or self.cursor == 0:
            return True
        try:
            self._sink.write(self._run_id, Batch(), Receipt(name, self.cursor, self.cursor))
        except StoreBehindError as error:
            self._go_back(error.seq)
            return False
        return True

    def oldest_seconds(self, now: float) -> float:
        """Age of the oldest record that was tried and not delivered yet; 0 when there is none."""
        in_hand = self._in_hand  # emptied by the thread that delivers
        return max(0.0, now - in_hand[0].ts) if in_hand else 0.0

    def _go_back(self, seq: int) -> None:
        self._tell(
            "StoreBehind",
            f"The metadata store has records up to {seq} of the {self.cursor} delivered, as after a restore of an "
            "older copy: the rest is sent again.",
        )
        self.cursor, self._in_hand = seq, []
        self._reader = SpoolReader(self.folder, seq)
        self._save_cursor()

    def _save_cursor(self) -> None:
        try:
            write_cursor(self.folder, self.cursor)
        except OSError as error:  # a full disk: the records are sent again after a restart, and change nothing
            log.warning("The cursor of %s can not be written: %s", self.folder, error)

    def _write(self, records: list[Record], after: int) -> None:
        name, last = spool_id(self.folder), records[-1].seq
        receipt = Receipt(name, after, last) if name else None
        try:
            self._sink.write(self._run_id, _batch(self._run_id, records), receipt)
        except RejectedError as error:
            # One bad record must not hold up the others for ever: halve until it is alone, and leave it out.
            if len(records) == 1:
                self._refuse(records[0], error)
                self._sink.write(self._run_id, Batch(), receipt)
                return
            middle = len(records) // 2
            self._write(records[:middle], after)
            self._write(records[middle:], records[middle - 1].seq)

    def _refuse(self, record: Record, error: RejectedError) -> None:
        self.refused += 1
        log.error("Record %d of %s is refused: %s", record.seq, self.folder, error)
        self._tell("RecordRefused", f"A {record.kind} record of step {record.step} was refused: {error}")


def _batch(run_id: str, records: list[Record]) -> Batch:
    try:
        return batch_of(run_id, records)
    except (TypeError, KeyError, AttributeError) as error:
        raise RejectedError(f"it can not be understood ({error})") from error


def drain(folder: Path, sink: Sink, run_id: str, timeout_seconds: float) -> bool:
    """Deliver what a spool still holds, without a thread; whether all of it is delivered. Never raises StoreError.

    For whoever outlives a trainer: `dapo run` calls it when an attempt's processes are gone.
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
    """How far the store is behind the spool: records not delivered yet, and seconds the oldest tried one waits."""

    records: int
    seconds: float


class Sender:
    """A thread that delivers a spool folder, after what `earlier` folders (of attempts that ended) still hold."""

    def __init__(
        self,
        spool_folder: Path,
        sink: Sink,
        run_id: str,
        *,
        earlier: Sequence[Path] = (),
        tell: Tell = _silent,
        poll_seconds: float = 0.5,
        verify_seconds: float = VERIFY_SECONDS,
        backoff: Backoff = Backoff(0.5, 30.0),  # noqa: B008 - frozen
    ) -> None:
        self._deliveries = [Delivery(folder, sink, run_id, tell) for folder in (*earlier, spool_folder)]
        self._tell = tell
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
        """As the thread last saw it, at most some seconds ago: for a metric of every step."""
        return self._lag

    def flush(self, timeout_seconds: float) -> bool:
        """Deliver all that is in the spool now, waiting at most `timeout_seconds`; whether the store has it."""
        targets = [(each, last_seq(each.folder)) for each in self._deliveries]
        with self._changed:
            asked = time.monotonic()
            self._verify_seconds, usual = 0.0, self._verify_seconds
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: self._verified_at >= asked and all(each.cursor >= target for each, target in targets),
                timeout_seconds,
            )
            self._verify_seconds = usual
            return done

    def close(self, timeout_seconds: float = 10.0) -> bool:
        """Flush, for at most `timeout_seconds`, and end; whether all is delivered."""
        done = self.flush(timeout_seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(5.0)
        return done

    def _run(self) -> None:
        while not self._closing:
            try:
                count = sum(delivery.deliver() for delivery in self._deliveries)
                again = count > 0 or not self._verified()
                self._note_success()
                delay = 0.0 if again else self._poll_seconds
            except Exception as error:  # a thread that ends would stop all delivery silently
                self._note_failure(error)
                delay = self._backoff.delay(self._failures, random.random())
            self._look()
            self._pause(delay)

    def _verified(self) -> bool:
        """Ask now and then whether the store has all; False when there is more to deliver."""
        began = time.monotonic()
        if began - self._verified_at < self._verify_seconds:
            return True
        if not all([delivery.verify() for delivery in self._deliveries]):
            return False
        self._verified_at = began
        return True

    def _look(self) -> None:
        now = time.time()
        records = sum(max(0, last_seq(each.folder) - each.cursor) for each in self._deliveries)
        self._lag = Lag(records, max(each.oldest_seconds(now) for each in self._deliveries))

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._hurry or self._closing, seconds)
            self._hurry = False

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("The metadata store can not be written, its records wait in the spool: %s", error)
            self._tell("StoreUnreachable", f"Metrics wait in the spool: {error}")

    def _note_success(self) -> None:
        if self._failures:
            log.info("The metadata store is back after %d failures", self._failures)
            self._tell("StoreReachable", f"The metadata store is back after {self._failures} failures.")
        self._failures = 0
