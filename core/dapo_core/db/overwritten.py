"""What an attempt recorded before a newer one went back and repeated its steps: a bounded number of points per curve.

Which points these are follows from the attempts alone, so that a run of one attempt costs no query.
"""

from collections.abc import Sequence
from itertools import count

from sqlalchemy import Connection, select

from dapo_core.db.points import curves_of_run
from dapo_core.run.store_rows import AttemptRow, CurvePoint

Place = tuple[int, int]
"""Step and attempt."""


def repeated_steps(
    attempts: Sequence[AttemptRow], most: int, from_step: int | None = None, to_step: int | None = None
) -> list[Place]:
    """At most `most` of the steps that several attempts finished, in order, each with the newest of these attempts but
    one. Of more steps, every 2nd, 5th, 10th, 20th and so on: steps of validation are mostly among them. Pure."""
    spans = [
        (row.attempt, _first(row), row.step_to)
        for row in sorted(attempts, key=lambda row: row.attempt)
        if row.step_to is not None
    ]
    if not (ranges := _limited(_overlaps(spans), from_step, to_step)):
        return []
    places = []
    for step in _spread(ranges, most):
        newest_first = (attempt for attempt, first, last in reversed(spans) if first <= step <= last)
        next(newest_first, None)
        # None where the earlier attempts left out steps between them.
        if (old := next(newest_first, None)) is not None:
            places.append((step, old))
    return places


def overwritten_points(
    connection: Connection, run_id: str, metrics: Sequence[str], places: Sequence[Place]
) -> dict[str, list[CurvePoint]]:
    """The points of the metrics at `places` that have a newer one at their step, by step; metrics without any are left
    out."""
    if not places:
        return {}
    ids, stored = curves_of_run(connection, run_id, metrics)
    if not ids:
        return {}
    points = stored.table()
    # Lookups by primary key, one for each place and metric; PostgreSQL may scan a small table instead. Newer points are
    # filtered out below: a join with them takes seconds in a table that was never analyzed.
    at_places = (
        points.c.run_id == run_id,
        points.c.metric_id.in_(sorted(ids)),
        points.c.step.in_([step for step, _ in places]),
        points.c.attempt >= min(attempt for _, attempt in places),
    )
    columns = (points.c.metric_id, points.c.step, points.c.attempt, points.c.ts, points.c.value, points.c.flag)
    query = select(*columns).where(*at_places).order_by(points.c.metric_id, points.c.step, points.c.attempt)
    wanted = set(places)
    found: dict[str, dict[int, CurvePoint]] = {}
    old: tuple[int, CurvePoint] | None = None
    for metric_id, *rest in connection.execute(query, stored.parameters).all():
        point = CurvePoint._make(rest)
        if (point.step, point.attempt) in wanted:
            old = (metric_id, point)
        elif old is not None and (metric_id, point.step) == (old[0], old[1].step):
            found.setdefault(ids[metric_id], {})[point.step] = old[1]
    return {metric: list(curve.values()) for metric, curve in found.items()}


def _first(row: AttemptRow) -> int:
    """The first step of an attempt: one from the start may have recorded step 0."""
    return row.step_from + 1 if row.step_from else 0


def _overlaps(spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Ranges of steps that an attempt repeated, in order and apart; `spans` are (attempt, first, last), by attempt."""
    repeated, reached = list[tuple[int, int]](), -1
    for _, first, last in spans:
        if first <= min(last, reached):
            repeated.append((first, min(last, reached)))
        reached = max(reached, last)
    joined: list[tuple[int, int]] = []
    for first, last in sorted(repeated):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _limited(ranges: Sequence[tuple[int, int]], from_step: int | None, to_step: int | None) -> list[tuple[int, int]]:
    low = 0 if from_step is None else from_step
    cut = ((max(first, low), last if to_step is None else min(last, to_step)) for first, last in ranges)
    return [(first, last) for first, last in cut if first <= last]


def _spread(ranges: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Multiples of the least stride of which at most `most` are in the ranges."""
    strides = (digit * 10**power for power in count() for digit in (1, 2, 5))
    stride = next(each for each in strides if sum(last // each - (first - 1) // each for first, last in ranges) <= most)
    return [step for first, last in ranges for step in range(-(-first // stride) * stride, last + 1, stride)]
