"""Stores to measure over: a thousand runs, and one with a million points per curve."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import builders
import psycopg
from dashboard_data import SHAPES, START
from servers.postgres import plain

from dapo_core.db import AttemptRow, EventRow, Point, RunRow, WriteBatch, open_reader, open_writer

LONG: Final = "long"
GROWING: Final = "growing"


def _wavy(shape: Callable[[int], float], step: int) -> float:
    return shape(step % 400) + 0.05 * math.sin(step * 0.37)


# What a run's page draws: its curves, in the shapes of the tests' runs.
CURVES: Final[dict[str, Callable[[int], float]]] = {name: partial(_wavy, shape) for name, shape in SHAPES.items()}
_COPY_POINTS: Final = """
INSERT INTO curve_points (run_key, metric_id, step, attempt, ts, value)
SELECT (SELECT run_key FROM run_keys WHERE run_id = %(run)s), metric_id, step, 1, %(start)s + step,
sin(step * 0.001 + metric_id) + 0.1 * sin(step * 0.37)
FROM metric_names, generate_series(1, %(points)s) AS step WHERE name = ANY(%(names)s)
"""
_COPY_RUN: Final = """
INSERT INTO {table} (run_id, {columns}) SELECT 'run-' || i, {columns} FROM {table}, generate_series(1, %(runs)s) AS i
WHERE run_id = 'template'
"""
_COPY_KEYS: Final = "INSERT INTO run_keys (run_id) SELECT 'run-' || i FROM generate_series(1, %(runs)s) AS i"
_COPY_TEMPLATE: Final = """
INSERT INTO curve_points (run_key, metric_id, step, attempt, ts, value, flag)
SELECT copies.run_key, metric_id, step, attempt, ts, value, flag
FROM curve_points JOIN run_keys template USING (run_key), run_keys copies
WHERE template.run_id = 'template' AND copies.run_id LIKE 'run-%%'
"""

_COLUMNS: Final = "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND column_name <> 'run_id'"


def fill(url: str, runs: int, points: int) -> None:
    """Runs of 50 steps, one with `points` steps, and one that will grow."""
    writer = open_writer(url)
    for run_id, steps in (("template", 50), (GROWING, 50), (LONG, 1)):
        _start(url, run_id, "Running" if run_id == GROWING else "Succeeded")
        grow(url, run_id, range(1, steps + 1))
    with psycopg.connect(plain(url)) as connection:
        for table in ("runs", "attempts", "latest", "rollups"):
            columns = [
                row[0]
                for row in connection.execute(
                    _COLUMNS,
                    (table,),
                )
            ]
            connection.execute(_COPY_RUN.format(table=table, columns=", ".join(columns)), {"runs": runs})
        connection.execute(_COPY_KEYS, {"runs": runs})
        connection.execute(_COPY_TEMPLATE, {"runs": runs})
        of_long = "run_key = (SELECT run_key FROM run_keys WHERE run_id = %s)"
        connection.execute(f"DELETE FROM curve_points WHERE {of_long}", (LONG,))
        connection.execute(_COPY_POINTS, {"run": LONG, "start": START, "points": points - 1, "names": list(CURVES)})
        connection.commit()
    # The last step goes through the writer, which makes the rollups of all before it.
    grow(url, LONG, range(points, points + 1))
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    writer.close()


def grow(url: str, run_id: str, steps: range) -> None:
    """These steps of every curve, in one commit."""
    writer = open_writer(url)
    writer.write(
        run_id,
        WriteBatch(
            points=[
                Point.of(name, step, 1, START + step, value(step)) for step in steps for name, value in CURVES.items()
            ]
        ),
    )
    writer.close()


def tick(url: str) -> None:
    """Something happens to one of the thousand runs, which a page of another does not show."""
    writer = open_writer(url)
    now = time.time()
    writer.write_events("run-1", [EventRow("run-1", f"tick-{now}", now, "Normal", "Tick", "Something happened.")])
    writer.close()


def newest(url: str) -> int:
    """The last step of the growing run: a store may be measured more than once."""
    return max(point.step for point in open_reader(url).latest(GROWING).values())


def _start(url: str, run_id: str, state: str) -> None:
    writer = open_writer(url)
    spec = builders.dumped(builders.job())
    writer.create_run(
        RunRow(run_id, run_id, spec=spec, state=state, created_at=START, started_at=START, total_steps=2_000_000)  # type: ignore[arg-type]
    )
    writer.start_attempt(AttemptRow(run_id, 1, START, step_from=0))
    writer.close()
