"""B16: points of earlier versions are read where they are, and moved while the store is in use."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice

import pytest
from metadata_databases import metadata_url, reader, writer
from servers.postgres import PostgresServer
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from dapo_core.cli.db import db
from dapo_core.db import (
    Bucket,
    MetadataReader,
    MetadataWriter,
    Point,
    RunRow,
    WriteBatch,
    convert,
    open_writer,
    prune,
    upgrade,
)
from dapo_core.db.prune import DAY, Keep

__all__ = ["metadata_url", "reader", "writer"]


def value(step: int) -> float:
    """Whole numbers, whose sums are the same in any order."""
    return float(round(1000 * math.sin(step)))


METRICS = ("loss", "val-core/math/acc/mean@8")
LAST = 700
FIRST = [Point.of(name, step, 1, float(step), value(step)) for name in METRICS for step in range(600)]
AGAIN = [Point.of(name, step, 2, 1000.0 + step, value(step + 7)) for name in METRICS for step in range(500, LAST)]

# As versions before revision 0005 kept them.
BACK = (
    "INSERT INTO points (run_id, metric_id, step, attempt, ts, value, flag) "
    "SELECT run_id, metric_id, step, attempt, ts, value, flag FROM curve_points JOIN run_keys USING (run_key)",
    "DELETE FROM curve_points",
    "DELETE FROM run_keys",
)
COUNTS = "SELECT (SELECT count(*) FROM points), (SELECT count(*) FROM curve_points)"


def execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.begin() as connection:
        *_, last = [connection.execute(text(statement)) for statement in statements]
        found = [tuple(row) for row in last] if last.returns_rows else []
    engine.dispose()
    return found


def run(url: str, run_id: str = "r", state: str = "Succeeded") -> None:
    """A run of an earlier version, whose second attempt went back."""
    with closing(open_writer(url)) as writer:
        writer.create_run(RunRow(run_id, "job", created_at=1.0))
        for points in (FIRST, AGAIN):
            writer.write(run_id, WriteBatch(points))
        writer.update_run_state(run_id, state, ended_at=2.0)  # type: ignore[arg-type]


READS: dict[str, Callable[[MetadataReader], object]] = {
    "curve": lambda reader: reader.curve("r", "loss", since_step=3),
    "since": lambda reader: reader.since("r", METRICS, 480),
    "steps": lambda reader: reader.buckets(["r"], ["loss"], buckets=1000),
    "buckets": lambda reader: reader.buckets(["r"], ["loss"], buckets=20),
    "buckets of several": lambda reader: reader.buckets(["r", "other"], METRICS, buckets=20, from_step=30),
    "moments": lambda reader: reader.moments("r", "loss", 9),
    "sparklines": lambda reader: reader.sparklines(["r", "other"], "loss"),
    "progress": lambda reader: reader.progress(["r", "other"], METRICS, METRICS),
    "curve part": lambda reader: reader.curve_part("r", METRICS, reader.marks(["r"], METRICS)["r"], None, 10_000),
    "next parts": lambda reader: reader.next_parts(
        {run_id: (mark, 550) for run_id, mark in reader.marks(["r", "other"], METRICS).items()}, METRICS, 10_000
    ),
    "validations": lambda reader: reader.validations(["r", "other"]),
}


def test_b16_reads_are_the_same_wherever_the_points_are(metadata_url: str, reader: MetadataReader) -> None:
    def found() -> dict[str, object]:
        return {name: read(reader) for name, read in READS.items()}

    run(metadata_url)
    run(metadata_url, "other")
    now = found()
    execute(metadata_url, *BACK)
    assert found() == now, "by name"
    engine = convert.dialects.open_engine(metadata_url)
    with engine.begin() as connection:
        convert._move(connection, "r", 1000, is_mixed=False)
    engine.dispose()
    assert execute(metadata_url, COUNTS) == [(2200, 1000)] and found() == now, "in both"
    assert list(convert.convert(metadata_url, 300)) == [("other", 1600), ("r", 600)]
    assert execute(metadata_url, COUNTS) == [(0, 3200)] and found() == now, "moved"


def test_b16_a_run_of_an_earlier_version_goes_on(
    metadata_url: str, writer: MetadataWriter, reader: MetadataReader
) -> None:
    run(metadata_url, state="Running")
    execute(metadata_url, *BACK)
    later = [Point.of("loss", step, 3, 3000.0 + step, -float(step)) for step in range(690, 900)]
    for start in range(0, len(later), 7):
        writer.write("r", WriteBatch(later[start : start + 7]))
    assert list(convert.convert(metadata_url)) == [], "its trainer may be of that version"
    before = _shown(reader)
    assert before[0].count == 900 and execute(metadata_url, COUNTS) == [(1600, 210)]
    writer.update_run_state("r", "Succeeded", ended_at=2.0)
    execute(metadata_url, "DELETE FROM rollups WHERE bucket = 42")  # as if made of a part of its points
    assert list(convert.convert(metadata_url)) == [("r", 1600)]
    assert _shown(reader) == before


def _shown(reader: MetadataReader) -> Sequence[Bucket]:
    return [of["r", "loss"][0] for of in (reader.buckets(["r"], ["loss"], buckets=most) for most in (1, 3, 40))]


def test_b16_an_earlier_version_goes_on_with_a_run_that_was_moved(metadata_url: str, reader: MetadataReader) -> None:
    """It makes its buckets of the points that it sees, which are its own."""
    run(metadata_url)
    moved = "INSERT INTO points (run_id, metric_id, step, attempt, ts, value) SELECT 'r', metric_id, {}, 3, 5000, 7"
    statements = [moved.format(step) + " FROM metric_names" for step in range(680, 690)]
    partial = "UPDATE rollups SET total = 70, finite = 10, count = 10, step_from = 680 WHERE width = 16 AND bucket = 42"
    execute(metadata_url, *statements, partial)
    assert [point.attempt for point in reader.curve("r", "loss", 678)] == [2, *(10 * [3]), *(10 * [2])]
    assert list(convert.convert(metadata_url)) == [("r", 20)]
    [bucket] = [of for of in reader.buckets(["r"], ["loss"], buckets=44)["r", "loss"] if of.step_from == 672]
    values = [*(value(step + 7) for step in range(672, 680)), *(8 * [7.0])]
    assert bucket.count == 16 and bucket.mean == pytest.approx(sum(values) / 16)


def test_b16_an_interrupted_conversion_is_repeated(metadata_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(metadata_url)
    execute(metadata_url, *BACK)
    calls = iter(range(3))
    move = convert._move
    monkeypatch.setattr(convert, "_move", lambda *given: (next(calls), move(*given))[1])
    engine = convert.dialects.open_engine(metadata_url)
    with pytest.raises(StopIteration):
        convert.convert_run(engine, "r", 100)
    engine.dispose()
    monkeypatch.undo()
    assert execute(metadata_url, COUNTS) == [(1300, 300)]
    assert list(convert.convert(metadata_url, 100)) == [("r", 1300)]
    assert execute(metadata_url, COUNTS) == [(0, 1600)]


def test_b16_the_newer_of_two_points_stays(metadata_url: str, reader: MetadataReader) -> None:
    """A trainer of this version sends again what one of an earlier version has delivered."""
    run(metadata_url)
    number, copied = "(SELECT min(metric_id) FROM metric_names)", "INSERT INTO points (run_id, metric_id, step, attempt"
    execute(
        metadata_url,
        f"{copied}, ts, value) VALUES ('r', {number}, 0, 1, 9999, 5), ('r', {number}, 1, 1, -0, 5)",
    )
    named = execute(metadata_url, f"SELECT name FROM metric_names WHERE metric_id = {number}")[0][0]
    assert list(convert.convert(metadata_url)) == [("r", 2)]
    assert [point.value for point in islice(reader.curve("r", str(named)), 2)] == [5.0, value(1)]


@pytest.mark.parametrize(
    ("keep", "left"),
    [(Keep(whole_days=1), 2 * (700 // 16 + 700 % 16)), (Keep(thinned_days=1), 0)],
    ids=["thin", "remove"],
)
def test_b16_retention_of_a_run_of_an_earlier_version(keep: Keep, left: int, metadata_url: str) -> None:
    run(metadata_url)
    execute(metadata_url, *BACK)
    chosen = prune.plan(metadata_url, keep, 400 * DAY)
    assert [each.points for each in (*chosen.thin, *chosen.remove)] == [1600]
    prune.apply(metadata_url, chosen)
    assert execute(metadata_url, COUNTS) == [(0, left)]
    assert (execute(metadata_url, "SELECT * FROM run_keys") == []) == (left == 0)


def test_b16_the_space_is_given_back(postgres: PostgresServer) -> None:
    url = postgres.new_database(upgraded=True)
    run(url)
    execute(url, *BACK)
    assert list(convert.convert(url)) == [("r", 1600)]
    assert execute(url, "SELECT pg_relation_size('points')") == [(0,)]


def test_b16_vacuum_follows_the_large_tables(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    upgrade(url)
    query = "SELECT relname FROM pg_class WHERE array_to_string(reloptions, ',') LIKE '%insert_scale_factor=0.01%'"
    assert sorted(execute(url, query)) == [("curve_points",), ("points",), ("rollups",)]


def test_b16_dapo_db_convert(metadata_url: str) -> None:
    run(metadata_url)
    run(metadata_url, "going-on", state="Suspended")
    execute(metadata_url, *BACK)
    answer = CliRunner().invoke(db, ["check", "--metadata", metadata_url], catch_exceptions=False)
    assert "1 runs have points of an earlier version" in answer.output and "1 more runs have not" in answer.output
    answer = CliRunner().invoke(db, ["convert", "--metadata", metadata_url], catch_exceptions=False)
    assert "Moved 1,600 points of 1 runs." in answer.output
    assert convert.waiting(metadata_url) == (0, 1)
