"""The cost of the metrics path: a spool append within training, and points per second into the store.

    python benchmarks/ingest.py [--steps 2000] [--metrics 60] [--json FILE]
    python benchmarks/ingest.py --postgres [--steps 2000] [--millions 50] [--json FILE]

The first: an append's p99 (a step waits for it), and the sender's path into SQLite against one row per commit, which is
how a tracker without a spool writes. The second: a new Postgres with its default durability, and a writer login
under row-level security; one step's batch, the sender's path, all of it sent again, and how both change while the
table of points grows to so many millions (about six minutes and 14 GB of disk for 50). Ratios are of one run on one
machine.
"""

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from servers.postgres import PostgresServer  # noqa: E402
from sqlalchemy import Integer, bindparam, create_engine, text  # noqa: E402

from dapo_core.db import (  # noqa: E402
    MetadataWriter,
    Point,
    RunRow,
    WriteBatch,
    check,
    open_reader,
    open_writer,
    roles,
    upgrade,
)
from dapo_trainer.spool import Sender, Spool, drain, read_records  # noqa: E402
from dapo_trainer.spool.records import batch_of  # noqa: E402
from dapo_trainer.spool.sender import BATCH  # noqa: E402

COMMITS = 500  # enough for a rate of single commits, which would take minutes for all points
RUN_STEPS = 2000  # a run's steps where the table grows
GROWTH = (0.02, 0.1, 0.2, 0.4, 0.7, 1.0)  # shares of the whole at which it is measured
MEASURED_RUNS = 5
MANY_RUNS = 20_000
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}

# A name as long as a real run's: it is a good part of a point.
FILLED = "format('filled-20261121-%s-x7k2', to_char(number, 'FM0000000'))"
FILL = (
    "INSERT INTO runs (run_id, name, namespace, spec, state, created_at, tags) "
    f"SELECT {FILLED}, 'job', 'default', '{{}}', 'Succeeded', 1, '{{}}' "
    "FROM generate_series(:first, :last) number",
    f"INSERT INTO run_keys (run_id) SELECT {FILLED} FROM generate_series(:first, :last) number",
    "INSERT INTO curve_points (run_key, metric_id, step, attempt, ts, value) "
    "SELECT run_key, metric_id, step, 1, 1.7e9 + step, step + metric_id / 7.0 "
    "FROM generate_series(:first, :last) number, metric_names, generate_series(1, :steps) step, run_keys "
    f"WHERE run_id = {FILLED}",
    "INSERT INTO rollups (run_id, metric_id, width, bucket, step_from, step_to, low, high, total, finite, count, last) "
    f"SELECT {FILLED}, metric_id, width, bucket, bucket * width, "
    "bucket * width + width - 1, bucket, bucket, bucket, width, width, bucket "
    "FROM generate_series(:first, :last) number, metric_names, (VALUES (16), (256)) widths (width), "
    "LATERAL generate_series(0, :steps / width - 1) bucket",
    "INSERT INTO latest (run_id, metric_id, step, attempt, ts, value, rolled_to) "
    f"SELECT {FILLED}, metric_id, :steps, 1, 1.7e9, 1, :steps / 16 * 16 "
    "FROM generate_series(:first, :last) number, metric_names",
)

Figures = dict[str, float | str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="steps of the run")
    parser.add_argument("--metrics", type=int, default=60, help="metrics per step")
    parser.add_argument("--postgres", action="store_true", help="into Postgres instead of SQLite")
    parser.add_argument("--millions", type=float, default=50, help="with --postgres: grow the table to so many points")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.postgres:
            figures = measure_postgres(Path(folder), options.steps, options.metrics, options.millions)
        else:
            figures = measure_sqlite(Path(folder), options.steps, options.metrics)
    for name, value in figures.items():
        print(f"{name:<58}{value:>14,.3f}" if isinstance(value, float) else f"{name:<58}{value:>14}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure_sqlite(folder: Path, steps: int, metrics: int) -> Figures:
    """All figures of SQLite, by name."""
    url = f"sqlite:///{folder / 'dapo.db'}"
    upgrade(url)
    paced = appends(folder / "paced", min(steps, 400), metrics, pause_seconds=0.01)
    burst = appends(folder / "spool", steps, metrics, pause_seconds=0.0)
    beside = appends_beside_a_sender(folder / "behind", url, steps, metrics)
    points = steps * metrics
    sent = points / seconds(lambda: drain(folder / "spool", open_writer(url), "r", 600))
    again = points / seconds(lambda: write_again(folder / "spool", url))
    single = one_row_a_commit(folder / "single.db")
    step_ms = [1000 * second for second in one_step_a_batch(url, min(steps, 400), metrics)]
    read_ms = 1000 * seconds(lambda: open_reader(url).curve("r", "m/0"))
    return machine() | {
        "append, a step each 10 ms: p50 (us)": 1e6 * quantile(paced, 0.5),
        "append, a step each 10 ms: p99 (us)": 1e6 * quantile(paced, 0.99),
        "append, a step each 10 ms: most (us)": 1e6 * max(paced),
        "append, without a pause: p50 (us)": 1e6 * quantile(burst, 0.5),
        "append, without a pause: p99 (us)": 1e6 * quantile(burst, 0.99),
        "append, without a pause: most (us)": 1e6 * max(burst),
        "append beside a sender that catches up: p50 (us)": 1e6 * quantile(beside, 0.5),
        "append beside a sender that catches up: p99 (us)": 1e6 * quantile(beside, 0.99),
        "append beside a sender that catches up: most (us)": 1e6 * max(beside),
        "one step's batch to SQLite: median (ms)": median(step_ms),
        "one step's batch to SQLite: p99 (ms)": quantile(step_ms, 0.99),
        "spool to SQLite (points/s)": sent,
        "the same once more, changing nothing (points/s)": again,
        "one row a commit, plain sqlite3 (points/s)": single,
        "ratio: spool to SQLite over one row a commit": sent / single,
        f"a curve of {steps} steps read (ms)": read_ms,
    }


def measure_postgres(folder: Path, steps: int, metrics: int, millions: float) -> Figures:
    """All figures of Postgres, by name."""
    server = PostgresServer(settings=SETTINGS).start()
    try:
        owner = server.new_database()
        upgrade(owner, with_roles=True)
        login = roles.grant(owner, owner.rpartition("/")[2] + "_writer", "writer", "default")
        assert login is not None
        url = login.render_as_string(hide_password=False)
        for run_id in ("r", "other"):
            open_writer(url).create_run(RunRow(run_id, "job", created_at=1.0))
        figures = machine() | {"postgres": check(owner).server}
        appends(folder / "spool", steps, metrics, pause_seconds=0.0)
        one_step_a_batch(url, 50, metrics)  # what is prepared once
        figures |= steps_figures("one step's batch", one_step_a_batch(url, 400, metrics, first=100))
        points = steps * metrics
        figures["spool to Postgres (points/s)"] = points / seconds(
            lambda: drain(folder / "spool", open_writer(url), "r", 600)
        )
        figures["the same once more, changing nothing (points/s)"] = points / seconds(
            lambda: write_again(folder / "spool", url)
        )
        return figures | growth(url, owner, metrics, millions)
    finally:
        server.close()


def growth(url: str, owner: str, metrics: int, millions: float) -> Figures:
    """Points per second, and the time of a step's batch, while the table grows to this many millions.

    At each size some runs are written by the writer; between the sizes the server itself generates rows of the same
    shape, with their rollups.
    """
    figures: Figures = {}
    writer, empty, a_run = open_writer(url), check(owner).size_bytes, RUN_STEPS * metrics
    there = 0
    for turn, share in enumerate(GROWTH, start=1):
        filled = round(share * millions * 1e6 / a_run) - there - MEASURED_RUNS
        if there:
            fill(owner, there, max(0, filled), metrics)
        runs = [f"grown-20261121-{there:04d}-{number:04d}" for number in range(MEASURED_RUNS)]
        took = sum(grow(writer, run_id, metrics) for run_id in runs)
        there += len(runs) + (max(0, filled) if there else 0)
        size = f"{there * a_run / 1e6:.1f} million points there"
        figures[f"points/s, {size}"] = len(runs) * a_run / took
        figures[f"a step's batch, {size}: median (ms)"] = 1e3 * median(
            one_step_a_batch(url, 200, metrics, first=1000 * turn)
        )
        figures[f"bytes a point, {size}"] = (check(owner).size_bytes - empty) / (there * a_run)
    figures |= steps_figures("a step's batch at the end", one_step_a_batch(url, 400, metrics, first=100_000))
    execute(owner, FILL[0], {"first": 1_000_000, "last": 1_000_000 + MANY_RUNS})
    with_many = one_step_a_batch(url, 400, metrics, first=200_000)
    return figures | steps_figures(f"a step's batch, {MANY_RUNS:,} runs on record", with_many)


def grow(writer: MetadataWriter, run_id: str, metrics: int) -> float:
    """Seconds that a whole run's points took, in the sender's batches."""
    writer.create_run(RunRow(run_id, "job", created_at=1.0))
    took = 0.0
    for begin in range(1, RUN_STEPS + 1, BATCH):
        batch = [point for step in range(begin, begin + BATCH) for point in points_of(step, metrics)]
        took += seconds(lambda batch=batch: writer.write(run_id, WriteBatch(points=batch)))  # type: ignore[misc]
    return took


def fill(owner: str, first: int, runs: int, metrics: int) -> None:
    """Insert the rows of this many runs directly, without a writer."""
    for statement in FILL:
        execute(owner, statement, {"first": first, "last": first + runs - 1, "steps": RUN_STEPS})
    execute(owner, "VACUUM ANALYZE", {})  # as autovacuum would have by then
    execute(owner, "CHECKPOINT", {})


def execute(owner: str, statement: str, numbers: dict[str, int]) -> None:
    given = [bindparam(name, type_=Integer) for name in numbers if f":{name}" in statement]
    engine = create_engine(owner, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement).bindparams(*given), numbers)
    engine.dispose()


def steps_figures(name: str, took: Sequence[float]) -> Figures:
    return {
        f"{name}: median (ms)": 1e3 * median(took),
        f"{name}: p90 (ms)": 1e3 * quantile(took, 0.9),
        f"{name}: p99 (ms)": 1e3 * quantile(took, 0.99),
    }


def appends(folder: Path, steps: int, metrics: int, pause_seconds: float) -> list[float]:
    """Seconds that each append took."""
    spool, took = Spool(folder, 1), []
    for step in range(1, steps + 1):
        took.append(append(spool, step, metrics))
        time.sleep(pause_seconds)
    assert spool.close(60)
    return took


def append(spool: Spool, step: int, metrics: int) -> float:
    values = {f"m/{number}": step + number / 7 for number in range(metrics)}
    began = time.perf_counter()
    spool.step(step, values)
    return time.perf_counter() - began


def appends_beside_a_sender(folder: Path, url: str, steps: int, metrics: int) -> list[float]:
    """Seconds that each append took while a sender in the same process delivers what waited for it."""
    appends(folder, steps, metrics, 0.0)
    spool, took = Spool(folder, 2), []
    sender = Sender(folder, open_writer(url), "behind")
    for step in range(steps + 1, steps + 1 + min(steps, 400)):
        took.append(append(spool, step, metrics))
        time.sleep(0.005)
    assert spool.close(60) and sender.close(60)
    return took


def write_again(folder: Path, url: str) -> None:
    """The sender's writes after it lost its cursor."""
    writer, records = open_writer(url), list(read_records(folder))
    for first in range(0, len(records), BATCH):
        writer.write("r", batch_of("r", records[first : first + BATCH]))


def points_of(step: int, metrics: int) -> list[Point]:
    return [Point.of(f"m/{number}", step, 1, 1.7e9 + step, step + number / 7) for number in range(metrics)]


def one_step_a_batch(url: str, steps: int, metrics: int, first: int = 1) -> list[float]:
    """Seconds that each step's own transaction took."""
    writer, took = open_writer(url), []
    for step in range(first, first + steps):
        points = points_of(step, metrics)
        took.append(seconds(lambda points=points: writer.write("other", WriteBatch(points=points))))  # type: ignore[misc]
    return took


def one_row_a_commit(path: Path) -> float:
    """Points per second when written one by one, on the same disk with the same durability."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE points (run TEXT, metric TEXT, step INTEGER, value REAL)")

    def write() -> None:
        for step in range(COMMITS):
            connection.execute("INSERT INTO points VALUES ('r', 'm/0', ?, ?)", (step, step / 7))

    took = seconds(write)
    connection.close()
    return COMMITS / took


def machine() -> Figures:
    return {
        "processors": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}"[:14],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "sqlalchemy": version("sqlalchemy"),
    }


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    main()
