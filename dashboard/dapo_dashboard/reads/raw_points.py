"""The points of curves as they were recorded, as CSV: no buckets, no averages."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import Final

from dapo_core.db import CurvePoint, MetadataReader, RejectedError
from dapo_core.errors import StoreError
from dapo_core.run.formatting import cell
from dapo_dashboard.reads.cached_reader import CachedReader

# Ten megabytes or so, made in memory; beyond, `dapo export` writes all of a run to files.
MAX_POINTS: Final = 200_000
Points = dict[str, list[CurvePoint]]


def points_csv(
    reader: CachedReader, run_ids: Sequence[str], metrics: Sequence[str], window: tuple[int, int] | None = None
) -> str:
    """A row for each run and step that has any of the metrics, with a column for each; empty where there is no value,
    `nan` or `inf` where it was not finite. Raises StoreError, also
    for more than MAX_POINTS."""
    found = {
        run_id: reader.read(("raw", run_id, tuple(metrics), window), _load(run_id, metrics, window)).value
        for run_id in run_ids
    }
    if sum(len(points) for by_metric in found.values() for points in by_metric.values()) > MAX_POINTS:
        raise _too_many(run_ids)
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(["run", "step", "attempt", "unix_seconds", *map(cell, metrics)])
    for run_id, by_metric in found.items():
        at = {(point.step, name): point for name, points in by_metric.items() for point in points}
        for step in sorted({step for step, _ in at}):
            present = [point for name in metrics if (point := at.get((step, name))) is not None]
            newest = max(present, key=lambda point: point.attempt)
            values = [_text(at.get((step, name))) for name in metrics]
            write([cell(run_id), step, newest.attempt, newest.ts, *values])
    return text.getvalue()


def _load(
    run_id: str, metrics: Sequence[str], window: tuple[int, int] | None
) -> Callable[[MetadataReader, Points | None], Points]:
    start, end = window or (0, None)

    def load(db: MetadataReader, _: Points | None) -> Points:
        last = max((point.step for point in db.latest(run_id).values()), default=0)
        if ((last if end is None else min(end, last)) - start) * len(metrics) > MAX_POINTS:
            raise _too_many([run_id])
        points = db.since(run_id, metrics, start - 1)
        return {name: [point for point in curve if end is None or point.step <= end] for name, curve in points.items()}

    return load


def _too_many(run_ids: Sequence[str]) -> StoreError:
    return RejectedError(
        f"These are more than {MAX_POINTS:,} points. Zoom in, or run `dapo export {run_ids[0]} FOLDER --metrics csv`."
    )


def _text(point: CurvePoint | None) -> str:
    if point is None:
        return ""
    return point.flag or ("" if point.value is None else repr(point.value))
