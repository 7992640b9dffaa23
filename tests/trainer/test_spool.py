"""The spool: nothing of what it took is lost, nothing of what befalls its disk reaches training."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_fakes import full_disk

from dapo_core.backoff import Backoff
from dapo_core.errors import StoreError
from dapo_trainer.spool import Record, Spool, SpoolReader, read_cursor, read_records
from dapo_trainer.spool.records import decode
from dapo_trainer.spool.segment_writer import SegmentFile
from dapo_trainer.spool.segments import last_seq, segments, write_cursor

QUICK = Backoff(0.01, 0.02)


def steps(folder: Path, after: int = 0) -> list[int]:
    return [record.step or 0 for record in read_records(folder, after) if record.kind == "step"]


def fill(folder: Path, first: int, last: int, **options: Any) -> Spool:
    spool = Spool(folder, 1, backoff=QUICK, **options)
    for step in range(first, last + 1):
        spool.step(step, {"loss": step / 2})
        assert spool.sync(5)
    return spool


def test_what_is_appended_is_read_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 3)
    spool.step(1, {"loss": 0.5, "kl": math.nan, "grad": math.inf, "neg": -math.inf})
    spool.event("Stalled", "No step.", type="Warning", step=1, dedup_key="k")
    spool.samples(1, "r/samples/x.parquet", 16, 99)
    assert spool.close()
    first, second, third = read_records(tmp_path)
    assert (first.seq, first.kind, first.attempt, first.step) == (1, "step", 3, 1)
    assert first.body["values"]["kl"] is None and first.body["flags"] == {"kl": "nan", "grad": "inf", "neg": "-inf"}
    assert math.isnan(first.numbers["kl"]) and first.numbers["grad"] == math.inf and first.numbers["loss"] == 0.5
    assert second.body == {"type": "Warning", "reason": "Stalled", "message": "No step.", "dedup_key": "k"}
    assert (third.kind, third.body["rows"]) == ("samples", 16)


def test_lines_are_json_behind_a_checksum(tmp_path: Path) -> None:
    fill(tmp_path, 1, 1).close()
    line = segments(tmp_path)[0].path.read_bytes()
    assert json.loads(line[9:])["values"] == {"loss": 0.5}


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1)
    spool.step(1, {"loss": 1, "name": "x", "none": None, "flag": True})  # type: ignore[dict-item]
    spool.close()
    assert next(read_records(tmp_path)).numbers == {"loss": 1.0, "flag": 1.0}


def test_a_record_that_is_no_json_is_lost_alone_and_told(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1)
    spool.append(Record(0, "event", 1.0, 1, None, {"message": object()}))
    spool.step(1, {"loss": 1.0})
    spool.sync(5)
    spool.sync(5)
    spool.close()
    reasons = [record.body.get("reason") for record in read_records(tmp_path) if record.kind == "event"]
    assert steps(tmp_path) == [1] and reasons == ["SpoolLost"]
    assert spool.stats.lost == 1


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) - 5] ^= 1
    path.write_bytes(bytes(data))


def zeroed(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: -len(data.splitlines()[-1]) - 1] + b"\0" * 60)


def rubbish(path: Path) -> None:
    path.write_bytes(path.read_bytes().rsplit(b"\n", 2)[0] + b"\nzzzz\n")


@pytest.mark.parametrize("harm", [torn, flipped, zeroed, rubbish], ids=lambda harm: harm.__name__)
def test_a_damaged_last_line_costs_that_record_alone(harm: Callable[[Path], None], tmp_path: Path) -> None:
    fill(tmp_path, 1, 3).close()
    harm(segments(tmp_path)[-1].path)
    assert steps(tmp_path) == [1, 2]
    fill(tmp_path, 4, 5).close()
    assert steps(tmp_path) == [1, 2, 4, 5]
    assert [record.seq for record in read_records(tmp_path)] == [1, 2, 3, 4]


def test_every_byte_where_a_write_may_be_cut(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2).close()
    whole = segments(tmp_path)[0].path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        segments(tmp_path)[0].path.write_bytes(whole[:cut])
        assert steps(tmp_path) == [1, 2][: 2 if cut == len(whole) else 1 if cut >= first else 0]


def test_reading_while_it_is_written(tmp_path: Path) -> None:
    reader = SpoolReader(tmp_path)
    assert reader.read() == []
    spool = fill(tmp_path, 1, 2)
    assert [record.step for record in reader.read()] == [1, 2]
    spool.step(3, {})
    spool.sync(5)
    assert [record.step for record in reader.read()] == [3]
    assert reader.read() == []
    spool.close()


def test_half_a_line_is_awaited(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2).close()
    path = segments(tmp_path)[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    reader = SpoolReader(tmp_path)
    assert [record.step for record in reader.read()] == [1]
    path.write_bytes(whole)
    assert [record.step for record in reader.read()] == [2]
    assert reader.damaged == 0


def test_segments_rotate_and_reading_goes_over_them(tmp_path: Path) -> None:
    fill(tmp_path, 1, 40, segment_bytes=500).close()
    assert len(segments(tmp_path)) > 5
    assert steps(tmp_path) == list(range(1, 41))
    assert [len(SpoolReader(tmp_path, after).read(7)) for after in (0, 20, 38, 40)] == [7, 7, 2, 0]
    assert steps(tmp_path, after=33) == list(range(34, 41))


def test_delivered_segments_make_room(tmp_path: Path) -> None:
    fill(tmp_path, 1, 20, segment_bytes=500).close()
    write_cursor(tmp_path, 20)
    spool = fill(tmp_path, 21, 60, segment_bytes=500, max_bytes=4000)
    spool.close()
    assert sum(segment.size() for segment in segments(tmp_path)) <= 4500
    assert steps(tmp_path, after=20)[-1] == 60


def test_past_the_bound_the_oldest_go_and_it_is_told(tmp_path: Path) -> None:
    spool = fill(tmp_path, 1, 100, segment_bytes=500, max_bytes=2000)
    spool.close()
    kept = steps(tmp_path)
    told = [record for record in read_records(tmp_path) if record.kind == "event"]
    assert sum(segment.size() for segment in segments(tmp_path)) <= 2500
    assert kept[-1] == 100 and kept == sorted(kept) and len(kept) < 30
    assert spool.stats.lost >= 100 - len(kept)
    assert told and all(
        record.body["reason"] == "SpoolLost" and "were lost" in record.body["message"] for record in told
    )


def test_numbers_go_on_after_a_restart_and_never_twice(tmp_path: Path) -> None:
    fill(tmp_path, 1, 3).close()
    # A power cut: the sender's cursor is on disk, the end of the spool is not.
    write_cursor(tmp_path, 3)
    path = segments(tmp_path)[0].path
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert last_seq(tmp_path) == 3
    fill(tmp_path, 4, 4).close()
    assert [record.seq for record in read_records(tmp_path, after_seq=3)] == [4]


def test_a_cursor_that_is_damaged_sends_again(tmp_path: Path) -> None:
    write_cursor(tmp_path, 7)
    assert read_cursor(tmp_path) == 7
    (tmp_path / "cursor.json").write_text("{")
    assert read_cursor(tmp_path) == 0


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1)
    with pytest.raises(StoreError, match="is being written by another process"):
        Spool(tmp_path, 2)
    spool.close()
    Spool(tmp_path, 2).close()


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used: Not a directory"):
        Spool(tmp_path / "file" / "spool", 1)


def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path) -> None:
    room = [600]
    spool = Spool(tmp_path, 1, backoff=QUICK, open_file=full_disk(lambda: room[0]))
    for step in range(1, 51):
        spool.step(step, {"loss": 1.0})
    assert not spool.sync(0.3)
    assert spool.stats.failures > 1 and spool.stats.lost == 0
    room[0] = 1_000_000
    assert spool.sync(5) and spool.close()
    assert steps(tmp_path) == list(range(1, 51))


def test_a_disk_that_stays_full_costs_the_oldest_records(tmp_path: Path) -> None:
    room = [0]
    spool = Spool(tmp_path, 1, max_waiting=10, backoff=QUICK, open_file=full_disk(lambda: room[0]))
    spool.step(0, {})
    while not spool.stats.failures:
        time.sleep(0.01)
    for step in range(1, 51):
        spool.step(step, {})
    room[0] = 1_000_000
    assert spool.sync(5) and spool.sync(5) and spool.close()
    assert steps(tmp_path) == [0, *range(41, 51)]
    assert spool.stats.lost == 40
    assert "40 records were lost" in [record for record in read_records(tmp_path)][-1].body["message"]


def test_closing_on_a_full_disk_ends_in_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1, backoff=QUICK, open_file=full_disk(lambda: 0))
    spool.step(1, {})
    began = time.monotonic()
    assert not spool.close(0.3)
    assert time.monotonic() - began < 3
    spool.step(2, {})  # after the end: counted, not raised
    assert spool.stats.lost >= 1


def test_a_disk_that_breaks_otherwise(tmp_path: Path) -> None:
    faults = iter([ValueError("a bug"), OSError(5, "Input/output error")])

    class Broken(SegmentFile):
        def sync(self) -> None:
            if (fault := next(faults, None)) is not None:
                raise fault
            super().sync()

    spool = Spool(tmp_path, 1, backoff=QUICK, open_file=Broken)
    spool.step(1, {})
    assert spool.sync(5) and spool.close()
    assert steps(tmp_path) == [1]


def test_appending_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    class Slow(SegmentFile):
        def sync(self) -> None:
            time.sleep(0.5)

    spool = Spool(tmp_path, 1, open_file=Slow)
    began = time.perf_counter()
    for step in range(20):
        spool.step(step, {f"m/{number}": 1.0 for number in range(60)})
    # Waiting for the disk would take 10 s; how little it takes is for benchmarks/ingest.py to say.
    assert time.perf_counter() - began < 5
    spool.close()


@pytest.mark.parametrize("line", [b"", b"\n", b"00000000 {}\n", b"x" * 50, b"\xff\xfe\n"], ids=repr)
def test_what_is_no_line_is_no_record(line: bytes) -> None:
    assert decode(line) is None
