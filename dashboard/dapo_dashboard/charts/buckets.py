"""Curves between the database and the charts: buckets of steps, increments, smoothing. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dapo_core.db import Bucket, CurvePoint

# A chart is about 400 pixels wide.
BUCKETS: Final = 300
# New steps are appended as buckets of one step; beyond this many, the whole curve is read again in even buckets.
MAX_BUCKETS: Final = 3 * BUCKETS


Curve = Sequence[Bucket]


def bucket_of(point: CurvePoint) -> Bucket:
    """One step as its own bucket."""
    value = point.value
    return Bucket(point.step, point.step, value, value, value, value, 1, point.flag)


def appended(curve: Curve, points: Iterable[CurvePoint]) -> list[Bucket]:
    """The curve with newer steps appended; steps that it already has are replaced."""
    new = [bucket_of(point) for point in points]
    if not new:
        return list(curve)
    return [cell for cell in curve if cell.step_to < new[0].step_from] + new


def scaled(curve: Curve, factor: float) -> list[Bucket]:
    """Every value times `factor`, above 0."""
    return [
        replace(
            each,
            min=_times(each.min, factor),
            max=_times(each.max, factor),
            mean=_times(each.mean, factor),
            last=_times(each.last, factor),
        )
        for each in curve
    ]


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def smoothed(values: Sequence[float | None], weight: float) -> list[float | None]:
    """An exponential moving average, corrected for its start; `weight` in [0, 1) is the share of the past.

    A gap stays a gap, and the average continues after it."""
    if weight <= 0:
        return list(values)
    average = norm = 0.0
    result: list[float | None] = []
    for value in values:
        if value is None:
            result.append(None)
            continue
        average = weight * average + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        result.append(average / norm)
    return result


def with_error(curve: Curve, errors: Curve, factor: float = 1.96) -> list[Bucket]:
    """The curve with an interval of `factor` standard errors around each mean, where the error is known."""
    error_at = {cell.step_to: cell.mean for cell in errors}
    return [
        cell
        if cell.mean is None or (error := error_at.get(cell.step_to)) is None
        else replace(cell, min=cell.mean - factor * error, max=cell.mean + factor * error)
        for cell in curve
    ]


def flagged_ranges(curves: Iterable[Curve]) -> list[tuple[int, int]]:
    """Ranges of steps in which a value was not finite; adjacent ranges are joined."""
    cells = sorted({(cell.step_from, cell.step_to) for curve in curves for cell in curve if cell.flag})
    joined: list[tuple[int, int]] = []
    for start, end in cells:
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def aligned(curves: Sequence[Curve]) -> list[Curve]:
    """The curves on the union of their steps, 0 where one has no value: stacked curves must share their steps."""
    spans = sorted({(bucket.step_to, bucket.step_from) for curve in curves for bucket in curve})
    steps = {step_to: step_from for step_to, step_from in spans}
    by_step = [{bucket.step_to: bucket for bucket in curve} for curve in curves]
    return [
        [buckets.get(end) or Bucket(start, end, 0.0, 0.0, 0.0, 0.0, 1, None) for end, start in steps.items()]
        for buckets in by_step
    ]
