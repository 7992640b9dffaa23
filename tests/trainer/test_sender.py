"""From the spool to the database: each record once, whatever dies or fails, and whenever it does."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from sqlite_store import reader, url, writer
from store_fakes import FlakySink

from dapo_core.backoff import Backoff
from dapo_core.db import (
    MetadataReader,
    MetadataWriter,
    Receipt,
    RejectedError,
    StoreBehindError,
    WriteBatch,
    open_reader,
    open_writer,
)
from dapo_core.errors import StoreError
from dapo_trainer.spool import Delivery, Sender, Spool, drain, read_cursor, read_records
from dapo_trainer.spool.segments import segments, write_cursor

__all__ = ["reader", "url", "writer"]

SPOOLING = Path(__file__).parent / "fakes" / "spooling.py"
QUICK = Backoff(0.01, 0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def spool_steps(folder: Path, *steps: int, attempt: int = 1) -> None:
    spool = Spool(folder, attempt)
    for step in steps:
        spool.step(step, {"loss": step / 2})
    assert spool.close()


def sent(reader: MetadataReader, metric: str = "loss") -> list[int]:
    return [point.step for point in reader.curve("r", metric)]


def test_what_is_spooled_arrives(folder: Path, writer: MetadataWriter, reader: MetadataReader) -> None:
    spool = Spool(folder, 1)
    sender = Sender(folder, writer, "r", poll_seconds=0.01)
    for step in range(1, 11):
        spool.step(step, {"loss": step / 2})
    spool.event("Stalled", "No step.", dedup_key="k")
    assert spool.sync(5) and sender.flush(5)
    assert sent(reader) == list(range(1, 11)) and reader.events("r")[0].reason == "Stalled"
    assert sender.lag.records == 0 and read_cursor(folder) == 11
    assert sender.close() and spool.close()


def test_a_later_attempt_delivers_what_an_earlier_one_left(
    tmp_path: Path, writer: MetadataWriter, reader: MetadataReader
) -> None:
    first, second = tmp_path / "attempt-1" / "spool", tmp_path / "attempt-2" / "spool"
    spool_steps(first, 1, 2, 3)
    spool_steps(second, 3, 4, attempt=2)
    sender = Sender(second, writer, "r", earlier=[first, tmp_path / "attempt-0" / "never-there"])
    assert sender.close()
    assert [(point.step, point.attempt) for point in reader.curve("r", "loss")] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_attempts_may_share_a_folder(folder: Path, writer: MetadataWriter, reader: MetadataReader) -> None:
    spool_steps(folder, 1, 2, 3)
    spool_steps(folder, 3, 4, attempt=2)
    assert drain(folder, writer, "r", 5)
    assert [(point.step, point.attempt) for point in reader.curve("r", "loss")] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_an_earlier_spool_that_cannot_be_read_does_not_stop_this_ones_delivery(
    tmp_path: Path, writer: MetadataWriter, reader: MetadataReader
) -> None:
    first, second = tmp_path / "attempt-1" / "spool", tmp_path / "attempt-2" / "spool"
    spool_steps(first, 1)
    (first / "id").unlink()
    (first / "id").mkdir()  # reading it fails, whoever runs the tests
    spool_steps(second, 2, attempt=2)
    told: list[str] = []
    sender = Sender(second, writer, "r", earlier=[first], backoff=QUICK, notify=lambda reason, _: told.append(reason))
    assert sender.close()
    assert sent(reader) == [2] and told == ["SpoolUnreadable"]


def test_records_that_an_older_copy_lacks_and_the_spool_dropped_are_reported(
    folder: Path, writer: MetadataWriter
) -> None:
    spool_steps(folder, 1, 2, 3)
    assert drain(folder, writer, "r", 5)
    [segment] = segments(folder)
    segment.path.unlink()  # as trimming does with the oldest delivered ones
    told: list[tuple[str, str]] = []

    def older_copy(run_id: str, batch: WriteBatch, receipt: Receipt | None) -> None:
        if receipt is not None and receipt.after > 1:
            raise StoreBehindError(1, receipt.after)

    delivery = Delivery(folder, FlakySink(lambda _: None, older_copy), "r", lambda *event: told.append(event))
    assert not delivery.verify()
    assert [reason for reason, _ in told] == ["StoreBehind", "SpoolLost"]
    assert told[1][1].startswith("2 records, 2 to 3, are missing from the metadata store")


def test_what_is_sent_again_changes_nothing(folder: Path, writer: MetadataWriter, reader: MetadataReader) -> None:
    spool_steps(folder, 1, 2, 3)
    assert drain(folder, writer, "r", 5)
    before = (reader.curve("r", "loss"), reader.latest("r"))
    write_cursor(folder, 0)
    assert drain(folder, writer, "r", 5)
    assert (reader.curve("r", "loss"), reader.latest("r")) == before


def test_an_outage_delays_and_is_told_once(folder: Path, writer: MetadataWriter, reader: MetadataReader) -> None:
    down = threading.Event()
    down.set()
    told: list[str] = []

    def fault(_batch: WriteBatch) -> None:
        if down.is_set():
            raise StoreError("Metadata database error during the write of a batch: it is down.")

    spool_steps(folder, 1, 2, 3)
    sink = FlakySink(fault, writer.write)
    sender = Sender(folder, sink, "r", poll_seconds=0.01, backoff=QUICK, notify=lambda reason, _: told.append(reason))
    assert not sender.flush(0.3)
    lag = sender.lag
    assert lag.records == 3 and lag.seconds > 0
    down.clear()
    assert sender.close(5)
    assert sent(reader) == [1, 2, 3] and told == ["StoreUnreachable", "StoreReachable"]


def test_a_sink_with_a_bug_does_not_end_the_sender(folder: Path) -> None:
    faults = iter([RuntimeError("a bug")])

    def fault(_batch: WriteBatch) -> None:
        if (bug := next(faults, None)) is not None:
            raise bug

    spool_steps(folder, 1)
    sink = FlakySink(fault)
    assert Sender(folder, sink, "r", poll_seconds=0.01, backoff=QUICK).close(5)
    assert len(sink.batches) == 1


def test_a_refused_record_does_not_hold_up_the_others(folder: Path) -> None:
    def fault(batch: WriteBatch) -> None:
        if any(point.step == 7 for point in batch.points):
            raise RejectedError("The metadata database rejected the write of a batch: too odd.")

    told: list[str] = []
    spool_steps(folder, *range(1, 21))
    sink = FlakySink(fault)
    delivery = Delivery(folder, sink, "r", lambda reason, message: told.append(f"{reason} {message}"))
    assert delivery.deliver() == 20
    delivered = chain.from_iterable(batch.points for batch in sink.batches)
    assert [point.step for point in delivered] == [step for step in range(1, 21) if step != 7]
    assert delivery.refused == 1 and told[0].startswith("RecordRefused A step record of step 7 was refused")


def test_a_record_of_a_newer_program_is_refused_alone(folder: Path, writer: MetadataWriter) -> None:
    spool = Spool(folder, 1)
    spool.event("A", "first", dedup_key="a")
    spool._put("checkpoint", 3, {"state": "committed", "made_by": 1, "uri": "u", "updated_at": 1.0, "unheard": 1})
    spool._put("dream", 3, {"x": 1})  # type: ignore[arg-type]
    spool.close()
    delivery = Delivery(folder, writer, "r")
    assert (delivery.deliver(), delivery.deliver(), delivery.refused) == (3, 0, 1)


def test_a_cursor_that_can_not_be_written_stops_nothing(
    folder: Path, writer: MetadataWriter, reader: MetadataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path, _seq: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dapo_trainer.spool.sender.write_cursor", full)
    spool_steps(folder, 1, 2)
    assert Sender(folder, writer, "r").close(5)
    assert sent(reader) == [1, 2]


def test_draining_gives_up_in_time(folder: Path) -> None:
    def down(_batch: WriteBatch) -> None:
        raise StoreError("down")

    spool_steps(folder, 1)
    began = time.monotonic()
    assert not drain(folder, FlakySink(down), "r", 0.3)
    assert time.monotonic() - began < 2
    assert drain(folder / "never-there", FlakySink(down), "r", 0.3)


def test_a_database_locked_by_another_program(
    folder: Path, url: str, writer: MetadataWriter, reader: MetadataReader
) -> None:
    spool_steps(folder, 1)
    with writer._engine.begin():
        sender = Sender(folder, open_writer(url), "r", backoff=QUICK)
        assert not sender.flush(0.3)
    assert sender.close(20)
    assert sent(reader) == [1]


def kill_at_random(arguments: list[str], chance: random.Random) -> list[int]:
    """Run the reporting process and kill -9 it within a second; the steps it said were on disk."""
    process = subprocess.Popen([sys.executable, str(SPOOLING), *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    safe = [int(process.stdout.readline())]
    time.sleep(chance.uniform(0.0, 0.5))
    os.kill(process.pid, signal.SIGKILL)
    safe += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    return safe


def shared_folder(tmp_path: Path, _attempt: int) -> Path:
    return tmp_path / "spool"


def own_folder(tmp_path: Path, attempt: int) -> Path:
    return tmp_path / f"attempt-{attempt}" / "spool"


@pytest.mark.parametrize("where", [shared_folder, own_folder], ids=["a folder a run", "a folder an attempt"])
def test_killed_at_any_moment(where: Callable[[Path, int], Path], tmp_path: Path, metadata_url: str) -> None:
    url, writer, reader = metadata_url, open_writer(metadata_url), open_reader(metadata_url)
    chance, safe, oracle = random.Random(4), set[int](), dict[tuple[int, int], float]()
    events = set[str]()
    first, folders = 1, [where(tmp_path, attempt) for attempt in range(1, 6)]
    for attempt, folder in enumerate(folders, start=1):
        told = kill_at_random([str(folder), url, "r", str(attempt), str(first)], chance)
        safe |= set(told)
        first = max(told) - 1  # as a resume from an earlier checkpoint does
    for folder in dict.fromkeys(folders):
        for record in read_records(folder):
            if record.kind == "event":
                events.add(record.body["dedup_key"])
            else:
                oracle[record.step or 0, record.attempt] = record.numbers["m/3"]
        assert drain(folder, writer, "r", 20)
    assert safe <= {step for step, _ in oracle}
    rows = every_point(writer, "m/3")
    assert len(rows) == len(set(rows)) and {row[:2]: row[2] for row in rows} == oracle
    highest = {step: attempt for step, attempt in sorted(oracle)}
    assert {point.step: point.attempt for point in reader.curve("r", "m/3")} == highest
    assert {event.dedup_key for event in reader.events("r")} == events


def every_point(writer: MetadataWriter, metric: str) -> list[tuple[int, int, float]]:
    look = (
        "SELECT step, attempt, value FROM curve_points JOIN run_keys USING (run_key) "
        "JOIN metric_names USING (metric_id) "
        f"WHERE name = '{metric}' AND run_id = 'r'"
    )
    with writer._engine.begin() as connection:
        return [(step, attempt, value) for step, attempt, value in connection.exec_driver_sql(look)]
