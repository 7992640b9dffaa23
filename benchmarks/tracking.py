"""The metadata store beside MLflow's tracking store: the same data, the same Postgres, the same machine.

    python benchmarks/tracking.py [--runs 1000] [--steps 10000] [--json FILE]

 - log_batch: one step's 60 metrics in one transaction, as a trainer sends them;
 - get_metric_history: one metric of one run, all its steps;
 - search_runs: all runs with the last values of their 60 metrics.
Both are called in Python without a server between: MLflow's `SqlAlchemyStore` in its own environment
(`scripts/bench-setup.sh`, made on the first call), ours with a trainer's login and with the dashboard's, both under
row-level security. They alternate, so that other load of the machine affects both. Prints medians in milliseconds and
the ratio.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from servers.postgres import PostgresServer  # noqa: E402

from dapo_core.db import AttemptRow, Point, RunRow, WriteBatch, open_reader, open_writer, roles, upgrade  # noqa: E402

METRICS = 60
ROUNDS = 5
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}

# Its side, driven line by line over stdin; each answer is a list of seconds.
MLFLOW = """
import json, sys, time, logging
logging.disable(logging.WARNING)
from mlflow.entities import Metric, ViewType
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
store = SqlAlchemyStore(sys.argv[1], sys.argv[2])
METRICS = int(sys.argv[3])
runs = []

def metrics_of(step):
    return [Metric(f"m/{number}", step + number / 7, 1700000000000 + step, step) for number in range(METRICS)]

def timed(work):
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found

def create(count):
    for _ in range(count):
        runs.append(store.create_run("0", "me", 1700000000000, [], f"run-{len(runs)}").info.run_id)
        store.log_batch(runs[-1], metrics_of(1), [], [])
    return []

def log(first, count):
    steps = range(first, first + count)
    return [timed(lambda: store.log_batch(runs[0], metrics_of(step), [], []))[0] for step in steps]

def fill(first, last):
    for begin in range(first, last, 16):
        batch = [metric for step in range(begin, min(begin + 16, last)) for metric in metrics_of(step)]
        store.log_batch(runs[0], batch, [], [])
    return []

def history(count):
    seconds, found = timed(lambda: store.get_metric_history(runs[0], "m/3"))
    assert len(list(found)) == count, len(list(found))
    return [seconds]

def search(count):
    seconds, found = timed(lambda: store.search_runs(["0"], "", ViewType.ACTIVE_ONLY, max_results=count))
    assert len(found) == count and len(found[0].data.metrics) == METRICS
    return [seconds]

print("ready", flush=True)
for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
"""


class Mlflow:
    """MLflow's store, in a process of its own environment."""

    def __init__(self, url: str) -> None:
        python = subprocess.run([ROOT / "scripts" / "bench-setup.sh"], check=True, capture_output=True, text=True)
        command = [python.stdout.strip(), "-c", MLFLOW, url, "/tmp/mlflow-artifacts", str(METRICS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self._answer() != "ready":
            pass

    def __call__(self, name: str, *arguments: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        return list(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "MLflow ended"
        return line.strip()

    def close(self) -> None:
        self._process.communicate()


class Ours:
    """The same calls on our store."""

    def __init__(self, owner: str) -> None:
        database = owner.rpartition("/")[2]
        writer = roles.grant(owner, f"{database}_writer", "writer", "default")
        reader = roles.grant(owner, f"{database}_reader", "reader", None)
        assert writer is not None and reader is not None
        self._writer = open_writer(writer.render_as_string(hide_password=False))
        self._reader = open_reader(reader.render_as_string(hide_password=False))
        self._names = [f"m/{number}" for number in range(METRICS)]
        self._runs = 0

    def __call__(self, name: str, *arguments: int) -> list[float]:
        return list(getattr(self, name)(*arguments))

    def create(self, count: int) -> list[float]:
        for number in range(self._runs, self._runs + count):
            self._writer.create_run(RunRow(f"run-{number}", "job", created_at=float(number)))
            self._writer.start_attempt(AttemptRow(f"run-{number}", 1, 1.0))
            self._writer.write(f"run-{number}", WriteBatch(points=self._points(1)))
        self._runs += count
        return []

    def log(self, first: int, count: int) -> list[float]:
        batches = [WriteBatch(points=self._points(step)) for step in range(first, first + count)]
        return [seconds(partial(self._writer.write, "run-0", batch)) for batch in batches]

    def fill(self, first: int, last: int) -> list[float]:
        for begin in range(first, last, 200):
            batch = [point for step in range(begin, min(begin + 200, last)) for point in self._points(step)]
            self._writer.write("run-0", WriteBatch(points=batch))
        return []

    def history(self, count: int) -> list[float]:
        found: list[Any] = []
        took = seconds(lambda: found.extend(self._reader.curve("run-0", "m/3")))
        assert len(found) == count
        return [took]

    def search(self, count: int) -> list[float]:
        found: list[Any] = []
        took = seconds(lambda: found.extend(self._reader.run_table(self._names, limit=count)))
        assert len(found) == count and len(found[0].values) == METRICS
        return [took]

    def _points(self, step: int) -> list[Point]:
        return [Point.of(name, step, 1, 1.7e9 + step, step + number / 7) for number, name in enumerate(self._names)]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="runs to search")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the run whose history is read")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    server = PostgresServer(settings=SETTINGS).start()
    try:
        owner = server.new_database()
        upgrade(owner, with_roles=True)
        figures = measure(Mlflow(server.new_database()), Ours(owner), options.runs, options.steps)
    finally:
        server.close()
    for name, figure in figures.items():
        print(f"{name:<22}" + "".join(f"{key} {value:>10,.2f}   " for key, value in figure.items()))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(theirs: Mlflow, ours: Ours, runs: int, steps: int) -> dict[str, dict[str, float]]:
    """Figures by name: median milliseconds of each side, and how many times as long MLflow takes."""
    sides: Sequence[Callable[..., list[float]]] = (theirs, ours)
    for side in sides:
        side("create", runs)
    took: dict[str, list[list[float]]] = {name: [[], []] for name in ("log_batch", "get_metric_history", "search_runs")}
    for part in range(ROUNDS):
        for seen, side in zip(took["log_batch"], sides, strict=True):
            seen += side("log", 2 + part * 100, 100)
    for side in sides:
        side("fill", 2 + ROUNDS * 100, steps + 1)
    for _ in range(ROUNDS):
        for name, call, count in (("get_metric_history", "history", steps), ("search_runs", "search", runs)):
            for seen, side in zip(took[name], sides, strict=True):
                seen += side(call, count)
    theirs.close()
    found = {}
    for name, (mlflow, dapo) in took.items():
        medians = {"mlflow ms": 1e3 * median(mlflow), "dapo ms": 1e3 * median(dapo)}
        found[name] = medians | {"ratio": medians["mlflow ms"] / medians["dapo ms"]}
    return found


if __name__ == "__main__":
    main()
