"""Seconds of the queries behind a page, each with a source that has read nothing before."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from dapo_core.db import open_reader
from dapo_core.run.metrics import HEADLINES
from dapo_dashboard.charts import panels
from dapo_dashboard.charts.buckets import BUCKETS
from dapo_dashboard.reads import run_list
from dashboards import data

REPEATS = 7


def measure(url: str) -> dict[str, float]:
    """Milliseconds, the median of some repeats."""
    reader = open_reader(url)
    names = panels.wanted(panels.ALL, reader.metrics(data.LONG))
    ids = [row.run_id for row in reader.run_table([], limit=5_000)]

    def page() -> None:
        reader.run(data.LONG)
        reader.latest(data.LONG)
        reader.attempts(data.LONG)
        reader.alerts([data.LONG])
        reader.checkpoints(data.LONG)
        reader.buckets([data.LONG], names, buckets=BUCKETS)

    last = reader.latest(data.LONG)[names[0]].step
    figures = {
        f"all queries of a run's page, {len(names)} curves of {last:,} points, ms": page,
        f"table of {len(ids):,} runs, ms": lambda: reader.run_table(HEADLINES, limit=5_000),
        f"sparklines of {len(ids):,} runs, ms": lambda: reader.sparklines(ids, run_list.SPARKLINE, 32),
        "what is new of a run, ms": lambda: reader.since(data.LONG, names, last - 3),
        "a window of 1,000 steps within it, ms": lambda: reader.buckets(
            [data.LONG], names, buckets=BUCKETS, from_step=last // 2, to_step=last // 2 + 1_000
        ),
    }
    return {name: 1000 * _median(call) for name, call in figures.items()}


def _median(call: Callable[[], Any]) -> float:
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return median(took)
