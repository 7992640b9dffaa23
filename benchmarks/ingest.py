"""What the metrics path costs: a spool append within training, and points a second into SQLite.

    python benchmarks/ingest.py [--steps 2000] [--metrics 60] [--json FILE]

Ratios are of one run on one machine. The numbers that matter: an append's p99 (a step waits for it) and the points a
second of the sender's path against one row a commit, which is how a tracker without a spool writes.
"""

import argparse
import json
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from dapo_core.db import Point, open_reader, open_writer, upgrade
from dapo_trainer.records import batch_of
from dapo_trainer.sender import BATCH, drain
from dapo_trainer.spool import Spool, read_records

COMMITS = 500  # enough for a rate of single commits, which would take minutes for all points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="steps of the run")
    parser.add_argument("--metrics", type=int, default=60, help="metrics a step")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.steps, options.metrics)
    for name, value in figures.items():
        print(f"{name:<58}{value:>14,.3f}" if isinstance(value, float) else f"{name:<58}{value:>14}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(folder: Path, steps: int, metrics: int) -> dict[str, float | str]:
    """All figures, by name."""
    url = f"sqlite:///{folder / 'dapo.db'}"
    upgrade(url)
    paced = appends(folder / "paced", min(steps, 400), metrics, pause_seconds=0.01)
    burst = appends(folder / "spool", steps, metrics, pause_seconds=0.0)
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
        "one step's batch to SQLite: median (ms)": median(step_ms),
        "one step's batch to SQLite: p99 (ms)": quantile(step_ms, 0.99),
        "spool to SQLite (points/s)": sent,
        "the same once more, changing nothing (points/s)": again,
        "one row a commit, plain sqlite3 (points/s)": single,
        "ratio: spool to SQLite over one row a commit": sent / single,
        f"a curve of {steps} steps read (ms)": read_ms,
    }


def appends(folder: Path, steps: int, metrics: int, pause_seconds: float) -> list[float]:
    """Seconds that each append took."""
    spool, took = Spool(folder, 1), []
    for step in range(1, steps + 1):
        values = {f"m/{number}": step + number / 7 for number in range(metrics)}
        began = time.perf_counter()
        spool.step(step, values)
        took.append(time.perf_counter() - began)
        time.sleep(pause_seconds)
    assert spool.close(60)
    return took


def write_again(folder: Path, url: str) -> None:
    """The sender's writes after it lost its cursor."""
    writer, records = open_writer(url), list(read_records(folder))
    for first in range(0, len(records), BATCH):
        writer.write("r", batch_of("r", records[first : first + BATCH]))


def one_step_a_batch(url: str, steps: int, metrics: int) -> list[float]:
    """Seconds that each step's own transaction took."""
    writer, took = open_writer(url), []
    for step in range(1, steps + 1):
        points = [Point.of(f"m/{number}", step, 1, 1.0, step + number / 7) for number in range(metrics)]
        took.append(seconds(lambda points=points: writer.write_points("other", points)))  # type: ignore[misc]
    return took


def one_row_a_commit(path: Path) -> float:
    """Points a second of the naive way, on the same disk with the same durability."""
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


def machine() -> dict[str, float | str]:
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
