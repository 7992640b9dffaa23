"""The table of runs as it changes: all runs in one read, and of what is slow to read only what is new."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dapo_core.db import ENDED_STATES, RunTableRow
from dapo_core.db.pages import PageReader
from dapo_core.run.progress import PACE_METRICS, PACE_STEPS, progress_of
from dapo_dashboard.reads import run_rows
from dapo_dashboard.reads.source import Reading, Source

MOST = 5_000
SPARKLINE_BUCKETS = 32
# A curve in a cell is 32 points of a run of thousands of steps: it need not move every second.
SPARKLINE_SECONDS = 15.0
# Nor need the time left of all runs.
LEFT_SECONDS = 5.0
Values = Sequence[float | None]


@dataclass(frozen=True)
class Sparklines:
    """By run; `until` says up to when each was read."""

    curves: Mapping[str, Values] = field(default_factory=dict)
    until: Mapping[str, float | None] = field(default_factory=dict)


def read_rows(source: Source) -> Reading[list[RunTableRow]]:
    """All runs of the store, newest first. Raises NothingYetError."""
    return source.read(("runs",), lambda reader, _: reader.run_table(run_rows.METRICS, limit=MOST))


def read_accelerators(source: Source, rows: Sequence[RunTableRow]) -> Mapping[str, int]:
    """How many each run asks for, which does not change under a run. `rows` are all that there are."""

    def load(reader: PageReader, last: Mapping[str, int] | None) -> Mapping[str, int]:
        known = last or {}
        new = [row.run_id for row in rows if row.run_id not in known]
        return {**known, **reader.accelerators(new)} if new else known

    return source.read(("gpus",), load).value


def read_seconds_left(source: Source, rows: Sequence[RunTableRow]) -> Mapping[str, float]:
    """Of the runs that go on, those whose time left is known. `rows` are all that there are."""
    alive = [row.run_id for row in rows if row.state not in ENDED_STATES]

    def load(reader: PageReader, _: Mapping[str, float] | None) -> Mapping[str, float]:
        progress = reader.progress(alive, history=PACE_METRICS, first_steps=0, last_steps=PACE_STEPS) if alive else {}
        found = {run_id: progress_of(run).eta_seconds for run_id, run in progress.items()}
        return {run_id: float(seconds) for run_id, seconds in found.items() if seconds is not None}

    return source.read(("seconds left",), load, max_age=LEFT_SECONDS).value


def read_sparklines(source: Source, rows: Sequence[RunTableRow]) -> Mapping[str, Values]:
    """Those that ended are read once, and again if they went on; the others every now and then. `rows` are all."""
    ended = [row for row in rows if row.state in ENDED_STATES]
    alive = [row.run_id for row in rows if row.state not in ENDED_STATES]

    def load(reader: PageReader, last: Sparklines | None) -> Sparklines:
        known = last or Sparklines()
        new = [row for row in ended if known.until.get(row.run_id, -1.0) != row.updated_at]
        if not new:
            return known
        found = reader.sparklines([row.run_id for row in new], run_rows.SPARKLINE, SPARKLINE_BUCKETS)
        return Sparklines({**known.curves, **found}, {**known.until, **{row.run_id: row.updated_at for row in new}})

    old = source.read(("sparklines", "ended"), load).value.curves
    new = source.read(
        ("sparklines", "alive"),
        lambda reader, _: reader.sparklines(alive, run_rows.SPARKLINE, SPARKLINE_BUCKETS) if alive else {},
        max_age=SPARKLINE_SECONDS,
    )
    return {**old, **new.value}
