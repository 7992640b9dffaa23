"""Curves in buckets: whatever order points come in, and whether from rollups or not, they are what the points say."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest
from metadata_databases import reader, writer
from servers.postgres import PostgresServer
from sqlalchemy import NullPool, create_engine, text

from dapo_core.db import AttemptRow, Bucket, MetadataReader, MetadataWriter, Point, RunRow, WriteBatch, open_writer
from dapo_core.db.curves import bucket_width
from dapo_core.db.points import points_of
from dapo_core.db.rollups import of_points, seen

__all__ = ["reader", "writer"]

Written = Sequence[Sequence[Point]]


def curve(metric: str, attempt: int, first: int, last: int, every: int = 1) -> list[Point]:
    """Steps `first` to `last`, some of whose values are not finite."""
    odd = {13: math.nan, 29: math.inf, 30: -math.inf}
    value = {step: odd.get(step % 97, math.sin(step / 9) * attempt) for step in range(first, last + 1, every)}
    return [Point.of(metric, step, attempt, 100.0 * attempt + step, each) for step, each in value.items()]


def in_batches(points: Sequence[Point], size: int) -> list[Sequence[Point]]:
    return [points[start : start + size] for start in range(0, len(points), size)]


def shuffled(points: Sequence[Point], size: int) -> list[Sequence[Point]]:
    mixed = list(points)
    random.Random(3).shuffle(mixed)
    return in_batches(mixed, size)


WRITTEN: dict[str, Callable[[], Written]] = {
    "a step at a time": lambda: in_batches(curve("m", 1, 0, 70), 1),
    "all at once": lambda: [curve("m", 1, 1, 1500)],
    "in odd batches": lambda: in_batches(curve("m", 1, 0, 1000), 37),
    "in any order": lambda: shuffled(curve("m", 1, 1, 900), 50),
    "a resume goes back": lambda: [curve("m", 1, 0, 700), *in_batches(curve("m", 2, 300, 500), 20)],
    "the earlier attempt's come last": lambda: [curve("m", 2, 300, 800), *in_batches(curve("m", 1, 0, 700), 90)],
    "two attempts at once, and all of it twice": lambda: (
        2 * shuffled([*curve("m", 1, 0, 600), *curve("m", 2, 200, 900), *curve("m", 3, 100, 333)], 200)
    ),
    "with gaps": lambda: [*in_batches(curve("m", 1, 5, 40), 9), curve("m", 1, 1000, 5000, every=10)],
    "far into the run at once": lambda: [curve("m", 1, 700, 701)],
}


def survivors(written: Written) -> dict[int, Point]:
    newest: dict[int, Point] = {}
    for point in (point for batch in written for point in batch):
        if point.step not in newest or point.attempt >= newest[point.step].attempt:
            newest[point.step] = point
    return newest


def expected(points: Mapping[int, Point], width: int) -> list[Bucket]:
    slots: dict[int, list[Point]] = {}
    for step in sorted(points):
        slots.setdefault(step // width, []).append(points[step])
    return [_bucket(slot) for slot in slots.values()]


def _about(value: float) -> Any:
    return pytest.approx(value)


def _bucket(slot: Sequence[Point]) -> Bucket:
    finite = [point.value for point in slot if point.value is not None]
    return Bucket(
        slot[0].step,
        slot[-1].step,
        min(finite, default=None),
        max(finite, default=None),
        _about(sum(finite) / len(finite)) if finite else None,
        slot[-1].value,
        len(slot),
        max((point.flag for point in slot if point.flag), default=None),
    )


@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN.keys())
def test_buckets_match_the_points(make: Callable[[], Written], writer: MetadataWriter, reader: MetadataReader) -> None:
    written = make()
    for batch in written:
        writer.write("r", WriteBatch(points=batch))
        writer.write("other", WriteBatch(points=[*curve("n", 1, 2, 3), *batch[:1]]))
    points = survivors(written)
    begin, end = min(attempt.step_from or 0 for attempt in reader.attempts("r")), max(points)
    for most in (1, 3, 20, 50, 400, 10_000):
        width = bucket_width(begin, end, most)
        assert reader.buckets(["r"], ["m"], buckets=most) == {("r", "m"): expected(points, width)}, width


def test_a_long_curve_is_read_by_parallel_workers(postgres: PostgresServer) -> None:
    """A plan for one processor takes twice as long, and a small change of the query's words makes it one."""
    url = postgres.new_database(upgraded=True)
    with closing(open_writer(url)) as writer:
        writer.write("r", WriteBatch(points=curve("m", 1, 1, 2000)))
    with create_engine(url, poolclass=NullPool).connect() as connection:
        stored = points_of(connection, "r")
        old = stored.table("old")
        mine = (old.c.run_id == "r", old.c.metric_id == 1)
        query = of_points(seen(256, old, mine), stored.table("final"), is_one=True)
        connection.execute(text("ANALYZE curve_points"))
        # As of a table that is large.
        for setting in ("parallel_setup_cost", "min_parallel_table_scan_size", "enable_indexscan", "enable_bitmapscan"):
            connection.execute(text(f"SET {setting} = 0"))
        planned = query.params(stored.parameters | {"run_id": "r", "metric_id": 1}).compile(
            connection, compile_kwargs={"literal_binds": True}
        )
        plan = "\n".join(connection.execute(text(f"EXPLAIN {planned}")).scalars())
    assert "Partial" in plan and "Parallel" in plan, plan


def test_curves_of_several_runs_have_common_boundaries(writer: MetadataWriter, reader: MetadataReader) -> None:
    for run, last in (("a", 100), ("b", 1000), ("c", 0)):
        writer.write(run, WriteBatch(points=[*curve("m", 1, 0, last), *curve("n", 1, 0, last // 2)]))
    found = reader.buckets(["a", "b", "none"], ["m", "n", "unknown"], buckets=10)
    assert {series: [bucket.step_from for bucket in curve] for series, curve in found.items()} == {
        ("a", "m"): [0],
        ("a", "n"): [0],
        ("b", "m"): [0, 112, 224, 336, 448, 560, 672, 784, 896],
        ("b", "n"): [0, 112, 224, 336, 448],
    }


def test_a_part_of_a_curve(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.write("r", WriteBatch(points=curve("m", 1, 0, 3000)))
    near = reader.buckets(["r"], ["m"], buckets=50, from_step=1000, to_step=1040)["r", "m"]
    assert [bucket.step_from for bucket in near] == list(range(1000, 1041))
    wide = reader.buckets(["r"], ["m"], buckets=10, from_step=1000, to_step=2000)["r", "m"]
    assert wide[0].step_from <= 1000 and wide[-1].step_to >= 2000 and len(wide) <= 12
    assert reader.buckets(["r"], ["m"], from_step=5000) == {}


def test_points_since_a_step(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.write("r", WriteBatch(points=[*curve("m", 1, 1, 9), *curve("n", 1, 1, 3), *curve("m", 2, 8, 8)]))
    found = reader.since("r", ["m", "n", "unknown"], 7)
    assert {name: [(point.step, point.attempt) for point in points] for name, points in found.items()} == {
        "m": [(8, 2), (9, 1)],
        "n": [],
        "unknown": [],
    }


def test_sparklines_are_over_each_runs_own_steps(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.write("long", WriteBatch(points=[Point.of("m", step, 1, 1.0, step // 512) for step in range(2048)]))
    writer.write("short", WriteBatch(points=[Point.of("m", step, 1, 1.0, step) for step in range(4)]))
    writer.write("bad", WriteBatch(points=[Point.of("m", 0, 1, 1.0, math.nan)]))
    found = reader.sparklines(["long", "short", "bad", "none"], "m", buckets=4)
    assert found == {"long": [0.0, 1.0, 2.0, 3.0], "short": [0.0, 1.0, 2.0, 3.0], "bad": [None]}


def test_a_table_of_runs(writer: MetadataWriter, reader: MetadataReader) -> None:
    for number in range(4):
        run = RunRow(f"r{number}", f"job{number % 2}", namespace=f"team{number % 2}", created_at=float(number))
        writer.create_run(run)
    writer.update_run_state("r1", "Failed", reason="Guard", message="m", started_at=1.0, ended_at=2.0)
    writer.start_attempt(AttemptRow("r1", 1, 1.0))
    writer.start_attempt(AttemptRow("r1", 2, 2.0, step_from=4))
    writer.write("r1", WriteBatch(points=[*curve("m", 1, 0, 9), *curve("n", 1, 13, 13)]))
    rows = reader.run_table(["m", "n", "unknown"])
    assert [row.run_id for row in rows] == ["r3", "r2", "r1", "r0"]
    row = rows[2]
    assert (row.state, row.reason, row.attempts, row.step, row.updated_at) == ("Failed", "Guard", 2, 4, 113.0)
    assert row.values["m"].step == 9 and row.values["n"].flag == "nan" and row.values.keys() == {"m", "n"}
    assert (rows[0].attempts, rows[0].step, dict(rows[0].values)) == (0, None, {})


FILTERS = {
    "namespace": ({"namespace": "team1"}, ["r3", "r1"]),
    "state": ({"states": ["Running"]}, ["r3"]),
    "search in the id": ({"search": "R2"}, ["r2"]),
    "search in the job's name": ({"search": "ob0"}, ["r2", "r0"]),
    "no pattern": ({"search": "%"}, []),
    "page": ({"limit": 2, "offset": 1}, ["r2", "r1"]),
    "owner": ({"owner": "me"}, ["r0"]),
}


@pytest.mark.parametrize(("given", "found"), FILTERS.values(), ids=FILTERS.keys())
def test_filters_of_the_table(
    given: Mapping[str, object], found: list[str], writer: MetadataWriter, reader: MetadataReader
) -> None:
    for number in range(4):
        run = RunRow(f"r{number}", f"job{number % 2}", namespace=f"team{number % 2}", created_at=float(number))
        writer.create_run(run)
    writer.update_run_state("r3", "Running")
    writer.update_run("r0", owner="me")
    assert [row.run_id for row in reader.run_table(**given)] == found  # type: ignore[arg-type]
