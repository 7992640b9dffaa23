"""The contract of the metadata store, on SQLite and on Postgres."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from metadata_databases import reader, writer

from dapo_core.db import (
    AttemptRow,
    CheckpointRow,
    CheckpointState,
    EventRow,
    MetadataReader,
    MetadataWriter,
    Point,
    RejectedError,
    RunRow,
    SamplesRow,
    WriteBatch,
    open_reader,
    open_writer,
)
from dapo_core.errors import StoreError

__all__ = ["reader", "writer"]

RUN = RunRow(
    "arith-1", "arith", spec={"a": [1, None]}, created_at=100.0, tags={"seed": "0"}, total_steps=60, owner="me"
)


def points(metric: str, attempt: int, values: dict[int, float], ts: float = 1.0) -> list[Point]:
    return [Point.of(metric, step, attempt, ts, value) for step, value in values.items()]


def test_a_run_comes_back_as_it_was_written(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.create_run(RUN)
    writer.create_run(replace(RUN, name="other"))  # a supervisor that starts again changes nothing
    assert reader.runs() == [RUN]
    writer.update_run("arith-1", config={"actor": {"lr": 1e-6}}, total_steps=61)
    writer.update_run_state("arith-1", "Running", started_at=110.0)
    writer.update_run_state("arith-1", "Failed", reason="BadData", message="Row 3.", started_at=120.0, ended_at=130.0)
    found = reader.run("arith-1")
    assert found is not None and found.config == {"actor": {"lr": 1e-6}}
    assert (found.state, found.reason, found.started_at, found.ended_at) == ("Failed", "BadData", 110.0, 130.0)


def test_the_version_is_another_after_each_commit_and_only_then(
    metadata_url: str, writer: MetadataWriter, reader: MetadataReader
) -> None:
    def reads() -> bool:
        """Whether reading left the version as it was."""
        before = reader.version()
        reader.runs()
        other = open_reader(metadata_url)
        other.latest("arith-1")
        other.close()
        return reader.version() == before

    versions = {reader.version()}
    writer.create_run(RUN)
    for step in (1, 2):
        time.sleep(0.02)  # a file's time has ticks
        versions.add(reader.version())
        writer.write("arith-1", WriteBatch(points=points("a", 1, {step: 0.5})))
    versions.add(reader.version())
    assert len(versions) == 4
    assert any(reads() for _ in range(5)), "more than once: the server analyzes tables by itself"


def test_a_run_is_found_by_id_and_by_its_jobs_name(writer: MetadataWriter, reader: MetadataReader) -> None:
    first, second = (f"arith-2026112{number}-0412-abcd" for number in (1, 2))
    for number, run_id in enumerate((first, second), 1):
        writer.create_run(replace(RUN, run_id=run_id, created_at=float(number)))
    writer.create_run(replace(RUN, run_id="odd", name=first, namespace="team", created_at=9.0))
    names = [run.run_id if (run := reader.run(name)) else None for name in ("arith", first, "odd", "none")]
    assert names == [second, first, "odd", None]
    assert [run.run_id for run in reader.runs()] == ["odd", second, first]
    assert [run.run_id for run in reader.runs(namespace="team")] == ["odd"]
    assert [run.run_id for run in reader.runs(limit=1)] == ["odd"]


def test_attempts_know_their_last_step(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.start_attempt(AttemptRow("r", 1, started_at=1.0))
    writer.start_attempt(AttemptRow("r", 1, started_at=9.0))
    writer.attempt_resumed("r", 1, 0)
    writer.write("r", WriteBatch(points=points("loss", 1, {1: 0.5, 3: 0.4, 2: 0.3})))
    writer.write("r", WriteBatch(points=points("loss", 1, {2: 0.3})))
    writer.end_attempt("r", 1, reason="Killed", message="m", exit_code=137, counted=True, ended_at=2.0)
    expected = AttemptRow("r", 1, 1.0, 2.0, step_from=0, step_to=3, reason="Killed", message="m")
    assert reader.attempts("r") == [replace(expected, exit_code=137, counted=True)]


CURVES = {
    "one attempt": ([(1, {1: 1.0, 2: 2.0})], {1: 1.0, 2: 2.0}),
    "a resume replaces what it does again, and keeps the rest": (
        [(1, {1: 1.0, 2: 2.0, 3: 3.0}), (2, {2: 20.0})],
        {1: 1.0, 2: 20.0, 3: 3.0},
    ),
    "in whatever order they arrive": ([(2, {2: 20.0}), (1, {1: 1.0, 2: 2.0})], {1: 1.0, 2: 20.0}),
    "three attempts": ([(1, {5: 1.0}), (3, {5: 3.0}), (2, {5: 2.0, 6: 2.5})], {5: 3.0, 6: 2.5}),
}


def test_numbers_whose_sum_overflows_do_not_reject_their_step(writer: MetadataWriter, reader: MetadataReader) -> None:
    values = dict.fromkeys(range(40), 1.7e308)
    writer.write(
        "r", WriteBatch(points=points("grad_norm", 1, values) + points("loss", 1, dict.fromkeys(range(40), 1.0)))
    )
    assert {point.flag for point in reader.curve("r", "grad_norm")} == {"inf"}
    assert len(reader.curve("r", "loss")) == 40
    assert len(reader.buckets(["r"], ["grad_norm", "loss"], buckets=2)) == 2


@pytest.mark.parametrize(("written", "expected"), CURVES.values(), ids=CURVES.keys())
def test_a_curve_shows_the_highest_attempt_of_each_step(
    written: list[tuple[int, dict[int, float]]],
    expected: dict[int, float],
    writer: MetadataWriter,
    reader: MetadataReader,
) -> None:
    for attempt, values in written:
        writer.write("r", WriteBatch(points=points("loss", attempt, values)))
        writer.write("r", WriteBatch(points=points("loss", attempt, values)))
        writer.write("other", WriteBatch(points=points("loss", attempt + 9, values)))
    assert {point.step: point.value for point in reader.curve("r", "loss")} == expected
    last = max(expected)
    assert [point.step for point in reader.curve("r", "loss", since_step=last - 1)] == [last]
    assert reader.curve("r", "unknown") == []


LATEST = {
    "the highest step": ([(1, {1: 1.0, 2: 2.0})], (2, 2.0)),
    "of the newest attempt, though an earlier one was further": ([(1, {9: 1.0}), (2, {4: 2.0})], (4, 2.0)),
    "also when that arrives late": ([(2, {4: 2.0}), (1, {9: 1.0})], (4, 2.0)),
}


@pytest.mark.parametrize(("written", "expected"), LATEST.values(), ids=LATEST.keys())
def test_the_last_value(
    written: list[tuple[int, dict[int, float]]],
    expected: tuple[int, float],
    writer: MetadataWriter,
    reader: MetadataReader,
) -> None:
    for attempt, values in written:
        writer.write("r", WriteBatch(points=points("loss", attempt, values)))
    found = reader.latest("r")["loss"]
    assert (found.step, found.value) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_a_value_that_is_not_finite_is_a_flag(value: float, writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.write("r", WriteBatch(points=points("loss", 1, {1: value, 2: 1.0})))
    first = reader.curve("r", "loss")[0]
    assert (first.value, first.flag) == (None, str(value))
    assert str(first.number) == str(value)


def test_a_rewritten_point_has_its_later_value(writer: MetadataWriter, reader: MetadataReader) -> None:
    for ts, value in ((1.0, 1.0), (3.0, 3.0), (2.0, 2.0)):
        writer.write("r", WriteBatch(points=points("loss", 1, {1: value}, ts)))
    assert [point.value for point in reader.curve("r", "loss")] == [3.0]


def test_two_values_of_one_step_in_one_batch(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.write("r", WriteBatch(points=points("loss", 1, {1: 1.0}, 1.0) + points("loss", 1, {1: 2.0}, 2.0)))
    assert [point.value for point in reader.curve("r", "loss")] == [2.0]


def test_events_are_recorded_once(writer: MetadataWriter, reader: MetadataReader) -> None:
    first = EventRow("r", "a", 1.0, "Normal", "Started", "m", attempt=1, step=None)
    second = EventRow("r", "b", 2.0, "Warning", "Stalled", "n", attempt=1, step=4)
    writer.write_events("r", [first, second])
    writer.write_events("r", [replace(first, message="again")])
    assert reader.events("r") == [second, first]
    assert reader.events("r", limit=1) == [second]


def test_the_state_of_a_checkpoint_only_advances(writer: MetadataWriter, reader: MetadataReader) -> None:
    row = CheckpointRow("r", 5, 1, "uploading", "file:///x", 1.0, metrics={"acc": 0.5})
    done = replace(row, state="committed", updated_at=2.0, size_bytes=9, files=2, spec_digest="d")
    deleting = replace(done, state="deleting", updated_at=3.0, decision="Removed: not among the newest 1.")
    writer.write("r", WriteBatch(checkpoints=[row]))
    writer.write("r", WriteBatch(checkpoints=[done]))
    assert reader.checkpoints("r") == [done]
    writer.write("r", WriteBatch(checkpoints=[deleting]))
    writer.write("r", WriteBatch(checkpoints=[done]))  # delivered once more
    assert reader.checkpoints("r") == [deleting]
    others = [replace(done, step=step) for step in (6, 7)]
    writer.write("r", WriteBatch(checkpoints=others))
    assert {row.step: row.state for row in reader.checkpoints("r")} == {5: "deleting", 6: "committed", 7: "committed"}


STATES = [
    pytest.param((1, "uploading", 9.0), (2, "committed", 5.0), True, id="a later attempt, its clock is behind (B12)"),
    pytest.param((2, "committed", 5.0), (1, "uploading", 9.0), False, id="an earlier attempt that woke up (B5)"),
    pytest.param((2, "committed", 5.0), (1, "failed", 9.0), False, id="an earlier attempt that was refused (B5)"),
    pytest.param((2, "failed", 5.0), (1, "committed", 9.0), True, id="an earlier attempt's that is in the store"),
    pytest.param((2, "committed", 5.0), (1, "deleted", 9.0), True, id="removed by retention"),
    pytest.param((2, "committed", 5.0), (0, "failed", 9.0), True, id="corrupt, written by an earlier version"),
]


@pytest.mark.parametrize(("first", "then", "replaced"), STATES)
def test_which_state_of_a_checkpoint_counts(
    first: tuple[int, CheckpointState, float],
    then: tuple[int, CheckpointState, float],
    replaced: bool,
    writer: MetadataWriter,
    reader: MetadataReader,
) -> None:
    for attempt, state, at in (first, then):
        writer.write("r", WriteBatch(checkpoints=[CheckpointRow("r", 5, attempt, state, "file:///x", at)]))
    (row,) = reader.checkpoints("r")
    assert (row.attempt, row.state, row.updated_at) == (then if replaced else first)


def test_a_batch_is_written_whole_or_not_at_all(writer: MetadataWriter, reader: MetadataReader) -> None:
    event = EventRow("r", "a", 1.0, "Normal", "Started", "m")
    bad = replace(event, dedup_key="b", message=None)  # type: ignore[arg-type]
    with pytest.raises(RejectedError):
        writer.write("r", WriteBatch(points=points("loss", 1, {1: 1.0}), events=[event, bad]))
    assert reader.curve("r", "loss") == [] and reader.events("r") == []
    writer.write("r", WriteBatch(points=points("loss", 1, {1: 1.0}), events=[event]))
    assert len(reader.curve("r", "loss")) == 1 and len(reader.events("r")) == 1


def test_samples_have_an_index(writer: MetadataWriter, reader: MetadataReader) -> None:
    row = SamplesRow("r", 5, 1, "r/samples/x.parquet", 16, 1234, 1.0)
    for _ in range(2):
        writer.write("r", WriteBatch(samples=[row]))
    assert reader.samples("r") == [row]


def test_summaries_of_all_runs(writer: MetadataWriter, reader: MetadataReader) -> None:
    for number in (1, 2):
        writer.create_run(replace(RUN, run_id=f"r{number}", created_at=float(number)))
    writer.start_attempt(AttemptRow("r1", 1, 1.0))
    writer.start_attempt(AttemptRow("r1", 2, 1.0, step_from=4))
    writer.write("r1", WriteBatch(points=points("loss", 1, {9: 0.5}) + points("kl", 1, {9: 0.1})))
    found = reader.summaries(["loss"])
    assert [(each.run.run_id, each.attempts, each.step) for each in found] == [("r2", 0, None), ("r1", 2, 4)]
    assert {name: point.value for name, point in found[1].values.items()} == {"loss": 0.5}


def test_many_writers_at_once(metadata_url: str, reader: MetadataReader) -> None:
    def write(number: int, done: Callable[[], object] = lambda: None) -> None:
        writer = open_writer(metadata_url)
        for step in range(20):
            writer.write(
                "r",
                WriteBatch(points=[Point.of(f"m/{name}", step, 1, 1.0, step) for name in range(number, number + 9)]),
            )

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reader.metrics("r") == sorted(f"m/{name}" for name in range(12))
    assert all(len(reader.curve("r", name)) == 20 for name in reader.metrics("r"))


def test_a_reader_never_writes(metadata_url: str) -> None:
    reader = open_reader(metadata_url)
    with pytest.raises(StoreError, match=r"read-?only"), reader._connection() as connection:
        connection.exec_driver_sql("DELETE FROM runs")


BAD_URLS = {
    "no URL": ("dapo.db", "is not a database URL"),
    "a database that is not known": ("mysql://host/db", "is for mysql.*use postgresql://.*sqlite:///"),
    "a password is not shown": ("oracle://me:secret@host/db", r"me:\*\*\*@host"),
}


@pytest.mark.parametrize(("bad", "sentence"), BAD_URLS.values(), ids=BAD_URLS.keys())
def test_unusable_urls(bad: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence):
        open_writer(bad)


def test_reading_creates_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no metadata database"):
        open_reader(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []
