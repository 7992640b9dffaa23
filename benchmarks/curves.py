"""Reading curves: one of a million points, and a page of many, from rollups and from points alone.

    python benchmarks/curves.py [--points 1000000] [--rounds 9] [--sqlite] [--json FILE]

Cold from points: the curve's rollups are set aside, so that the database aggregates every point; the server is
restarted before the first of these, which is reported separately. Medians in milliseconds, of one machine.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from servers.postgres import PostgresServer  # noqa: E402
from sqlalchemy import create_engine, text  # noqa: E402

from dapo_core.db import AttemptRow, Point, RunRow, WriteBatch, open_reader, open_writer, upgrade  # noqa: E402

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
BATCH = 20_000
PAGE_RUNS, PAGE_METRICS, PAGE_STEPS = 10, 12, 2000
TABLE_RUNS = 1000

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000, help="steps of the long curve")
    parser.add_argument("--rounds", type=int, default=9, help="rounds, of which the median is printed")
    parser.add_argument("--sqlite", action="store_true", help="in SQLite instead of Postgres")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    if options.sqlite:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(f"sqlite:///{folder}/dapo.db", options.points, options.rounds, lambda: None)
    else:
        server = PostgresServer(settings=SETTINGS).start()

        def restart() -> None:
            server.stop()
            server.start()

        try:
            figures = measure(server.new_database(), options.points, options.rounds, restart)
        finally:
            server.close()
    for name, value in figures.items():
        print(f"{name:<64}{value:>12,.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(url: str, points: int, rounds: int, restart: Callable[[], None]) -> Figures:
    """Milliseconds, by what is read."""
    upgrade(url)
    fill(url, points)
    engine = create_engine(url)
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE"))
    reader = open_reader(url)
    page = [f"page-{number}" for number in range(PAGE_RUNS)]
    metrics = [f"m/{number}" for number in range(PAGE_METRICS)]
    table = [f"table-{number}" for number in range(TABLE_RUNS)]
    reads: dict[str, Callable[[], object]] = {
        f"{points:,} points in 400 buckets, from rollups": lambda: reader.buckets(["long"], ["m/0"]),
        "the same where three attempts overlap": lambda: reader.buckets(["resumed"], ["m/0"]),
        "a tenth of it": lambda: reader.buckets(["long"], ["m/0"], from_step=points // 2, to_step=points * 6 // 10),
        "what came in the last step": lambda: reader.since("long", ["m/0"], points - 1),
        f"{PAGE_METRICS} charts of {PAGE_RUNS} runs x {PAGE_STEPS} steps": lambda: reader.buckets(page, metrics),
        f"table of {TABLE_RUNS} runs, 6 metrics": lambda: reader.run_table(metrics[:6], search="table"),
        f"sparklines of {TABLE_RUNS} runs": lambda: reader.sparklines(table, "m/0"),
        f"progress of {TABLE_RUNS} runs with 6 guard curves": lambda: reader.progress(table, metrics, metrics[:6]),
    }
    figures = {name: median(milliseconds(read) for _ in range(rounds)) for name, read in reads.items()}
    with engine.begin() as connection:
        for run_id in ("long", "resumed"):
            connection.execute(text("UPDATE latest SET rolled_to = 0 WHERE run_id = :run_id"), {"run_id": run_id})
    engine.dispose()
    restart()
    figures["from points, first after a restart"] = milliseconds(lambda: reader.buckets(["long"], ["m/0"]))
    for name, run_id in (("from points", "long"), ("from points, three attempts", "resumed")):
        read = lambda run_id=run_id: reader.buckets([run_id], ["m/0"])  # noqa: E731
        figures[name] = median(milliseconds(read) for _ in range(rounds))
    return figures


def fill(url: str, points: int) -> None:
    """A long curve, one with restarts, the runs of a page and those of a table."""
    writer = open_writer(url)

    def write(run_id: str, attempt: int, first: int, last: int, metrics: int) -> None:
        for begin in range(first, last, max(1, BATCH // metrics)):
            steps = range(begin, min(last, begin + max(1, BATCH // metrics)))
            batch = [
                Point.of(f"m/{number}", step, attempt, 1.7e9 + step, step % 977 + number)
                for step in steps
                for number in range(metrics)
            ]
            writer.write(run_id, WriteBatch(points=batch))

    def start(run_id: str, attempts: int = 1, back: int = 0) -> None:
        writer.create_run(RunRow(run_id, "job", created_at=1.0, spec={"model": "x" * 2000}))
        for attempt in range(1, attempts + 1):
            writer.start_attempt(AttemptRow(run_id, attempt, 1.0, step_from=0 if attempt == 1 else back * attempt))

    start("long")
    write("long", 1, 1, points + 1, 1)
    start("resumed", 3, points // 4)
    for attempt in (1, 2, 3):
        write("resumed", attempt, 1 if attempt == 1 else points // 4 * attempt + 1, points // 3 * attempt, 1)
    for number in range(PAGE_RUNS):
        start(f"page-{number}")
        write(f"page-{number}", 1, 1, PAGE_STEPS + 1, PAGE_METRICS)
    for number in range(TABLE_RUNS):
        start(f"table-{number}")
        write(f"table-{number}", 1, 1, 65, PAGE_METRICS)


def milliseconds(read: Callable[[], object]) -> float:
    began = time.perf_counter()
    read()
    return 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
