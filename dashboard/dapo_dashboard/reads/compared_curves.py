"""The curves of the runs that are compared, each read once for all viewers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dapo_core.db import MetadataReader
from dapo_dashboard.charts.buckets import BUCKETS, Curve
from dapo_dashboard.charts.common_axis import MEASURED_BY, placed, running_clock, steps_between
from dapo_dashboard.charts.view import ChartView
from dapo_dashboard.reads.cached_reader import CachedReader

Series = Mapping[tuple[str, str], Curve]
"""By run and metric."""
# Charts stand two side by side, with a curve for each of up to 20 runs.
COMPARED_BUCKETS: Final = BUCKETS // 2


def metric_names(reader: CachedReader, run_ids: Sequence[str]) -> list[str]:
    """All metrics that any of the runs has, sorted. Raises NothingReadError."""
    names: set[str] = set()
    for run_id in run_ids:
        names |= set(reader.read(("names", run_id), _names_of(run_id)).value)
    return sorted(names)


def _names_of(run_id: str) -> Callable[[MetadataReader, list[str] | None], list[str]]:
    return lambda db, _: db.metrics(run_id)


def series(
    reader: CachedReader, run_ids: Sequence[str], names: Sequence[str], window: tuple[int, int] | None = None
) -> Series:
    """The curves of all runs on common steps, in one query. Raises NothingReadError."""
    ids, wanted = tuple(run_ids), tuple(names)
    start, end = window or (None, None)
    reading = reader.read(
        ("compared", ids, wanted, window),
        lambda db, _: db.buckets(ids, wanted, buckets=COMPARED_BUCKETS, from_step=start, to_step=end),
        max_age=1.5,
    )
    return reading.value


@dataclass(frozen=True)
class SeriesInView:
    """The curves on the view's axis, the `steps` that they are of (None: all), and the runs without places there."""

    curves: Series
    steps: tuple[int, int] | None = None
    left_out: Sequence[str] = ()


def series_in_view(reader: CachedReader, run_ids: Sequence[str], names: Sequence[str], view: ChartView) -> SeriesInView:
    """The curves of all runs as the view shows them: over tokens or time, each at its own run's places. Raises
    NothingReadError."""
    if view.axis == "step":
        return SeriesInView(series(reader, run_ids, names, view.window), view.window)
    metric = MEASURED_BY[view.axis]
    measured = series(reader, run_ids, [metric])
    clocks = {run_id: running_clock(measured.get((run_id, metric), ()), view.axis) for run_id in run_ids}
    steps = steps_between(view.window, clocks.values(), view.axis)
    read = series(reader, run_ids, names, steps)
    curves = {(run_id, name): placed(curve, clocks[run_id], view.axis) for (run_id, name), curve in read.items()}
    return SeriesInView(curves, steps, [run_id for run_id, clock in clocks.items() if not clock.steps])
