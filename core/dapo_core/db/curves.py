"""Curves as a page draws them: some hundred buckets each, aggregated by the database, from rollups where it can be."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Select, and_, bindparam, func, select

from dapo_core.db import schema
from dapo_core.db.rollups import COARSE, FINE, newest, of_points, of_rollups, seen
from dapo_core.db.rows import Bucket, CurvePoint

Series = tuple[str, str]
"""Run id and metric."""

points, latest, attempts, names = schema.points, schema.latest, schema.attempts, schema.metric_names
_WHOLE: Final = latest.alias("whole")
# Rollups of curves that are written together end within so many steps of each other.
_ALIKE: Final = 16 * COARSE


@dataclass(frozen=True)
class Reach:
    """Of some runs: the first and the last step, and whether an attempt may have done again what one before it did."""

    first: int
    last: int
    is_repeated: bool


@dataclass(frozen=True)
class Rolled:
    """Curves whose rollups end between two steps that lie near each other."""

    run_ids: Sequence[str]
    metric_ids: Sequence[int]
    rolled_from: int
    rolled_to: int

    def levels(self, width: int) -> tuple[int, ...]:
        """The rollups that make buckets of `width`."""
        return tuple(level for level in (COARSE, FINE) if width % level == 0) if self.rolled_to else ()

    def parameters(self, limits: Mapping[str, int]) -> dict[str, Any]:
        """Of the queries of these curves."""
        return {
            "run_ids": self.run_ids,
            "metric_ids": self.metric_ids,
            "run_id": self.run_ids[0],
            "metric_id": self.metric_ids[0],
            "rolled_from": self.rolled_from,
            "rolled_to": self.rolled_to,
            "fine_from": self.rolled_from // COARSE * (COARSE // FINE),
            "step_from": self.rolled_from // FINE * FINE,
            **limits,
        }


def buckets_of(
    connection: Connection,
    run_ids: Sequence[str],
    metrics: Sequence[str],
    most: int,
    from_step: int | None,
    to_step: int | None,
) -> dict[Series, list[Bucket]]:
    """The curves in at most `most` + 1 buckets each, on common steps, so that they can be laid over each other."""
    ids = metric_ids(connection, metrics)
    reach = _reach(connection, run_ids)
    begin = reach.first if from_step is None else from_step
    end = max(reach.last if to_step is None else to_step, begin)
    width = bucket_width(begin, end, most)
    if width < FINE and _thinned(connection, run_ids, list(ids)):
        width = FINE
    conditions = _range(from_step, to_step)
    return bucketed(connection, run_ids, ids, width, conditions, reach.is_repeated)


def points_since(
    connection: Connection, run_id: str, metrics: Sequence[str], after_step: int
) -> dict[str, list[CurvePoint]]:
    """Steps after `after_step` of several metrics, as the highest attempt of each step saw them."""
    ids = metric_ids(connection, metrics)
    columns = (points.c.metric_id, points.c.step, points.c.attempt, points.c.ts, points.c.value, points.c.flag)
    mine = and_(points.c.run_id == run_id, points.c.metric_id.in_(ids), points.c.step > after_step)
    query = select(*columns).where(mine).order_by(points.c.metric_id, points.c.step, points.c.attempt)
    found: dict[str, dict[int, CurvePoint]] = {metric: {} for metric in metrics}
    for metric_id, step, *rest in connection.execute(query):
        found[ids[metric_id]][step] = CurvePoint(step, *rest)
    return {metric: list(curve.values()) for metric, curve in found.items()}


def metric_ids(connection: Connection, metrics: Iterable[str]) -> dict[int, str]:
    """Those of `metrics` that any run has, by their number."""
    query = select(names.c.metric_id, names.c.name).where(names.c.name.in_(sorted(set(metrics))))
    return {metric_id: name for metric_id, name in connection.execute(query)}


def bucket_width(begin: int, end: int, most: int) -> int:
    """Steps a bucket: the fewest that need no more than `most` buckets, in whole rollups if there is one so narrow."""
    width = max(1, ceil((end - begin + 1) / max(1, most)))
    for level in (COARSE, FINE):
        if width >= level:
            return ceil(width / level) * level
    return width


def _reach(connection: Connection, run_ids: Sequence[str]) -> Reach:
    query = select(attempts.c.run_id, attempts.c.attempt, attempts.c.step_from, attempts.c.step_to)
    rows = connection.execute(query.where(attempts.c.run_id.in_(run_ids))).all()
    first = min((row.step_from or 0 for row in rows), default=0)
    last = max((row.step_to for row in rows if row.step_to is not None), default=first)
    return Reach(first, last, len(rows) > len({row.run_id for row in rows}))


def _range(from_step: int | None, to_step: int | None) -> dict[str, int]:
    given = {"from_step": from_step, "to_step": to_step}
    return {name: step for name, step in given.items() if step is not None}


def _thinned(connection: Connection, run_ids: Sequence[str], ids: Sequence[int]) -> bool:
    mine = and_(latest.c.run_id.in_(run_ids), latest.c.metric_id.in_(ids))
    return bool(connection.execute(select(func.max(latest.c.thinned_to)).where(mine)).scalar())


def bucketed(
    connection: Connection,
    run_ids: Sequence[str],
    ids: Mapping[int, str],
    width: int,
    limits: Mapping[str, int],
    is_repeated: bool,
) -> dict[Series, list[Bucket]]:
    """From coarse rollups as far as they go, from fine ones after them, and from points at the end."""
    parts: dict[tuple[str, int, int], list[Any]] = {}
    for reach in _rolled(connection, run_ids, list(ids), width):
        given = reach.parameters(limits)
        is_one = len(reach.run_ids) == len(reach.metric_ids) == 1
        for query in _queries(reach.levels(width), width, frozenset(limits), is_repeated, is_one):
            # All at once: one by one, they take longer to fetch than to find.
            for row in connection.execute(query, given).all():
                parts.setdefault(row[:3], []).append(row)
    found: dict[Series, list[Bucket]] = {(run_id, name): [] for run_id in run_ids for name in ids.values()}
    for (run_id, metric_id, _), rows in sorted(parts.items(), key=lambda item: item[0]):
        found[run_id, ids[metric_id]].append(_bucket(rows))
    return {series: curve for series, curve in found.items() if curve}


def _rolled(connection: Connection, run_ids: Sequence[str], ids: Sequence[int], width: int) -> list[Rolled]:
    """The curves, those together whose rollups reach about as far; all together where rollups are of no use."""
    if not run_ids or not ids:
        return []
    if width < FINE:
        return [Rolled(sorted(run_ids), sorted(ids), 0, 0)]
    mine = and_(latest.c.run_id.in_(run_ids), latest.c.metric_id.in_(ids))
    query = select(latest.c.run_id, latest.c.metric_id, latest.c.rolled_to).where(mine)
    groups: list[list[Any]] = []
    for row in sorted(connection.execute(query.order_by(latest.c.rolled_to)), key=lambda row: row.rolled_to):
        if not groups or row.rolled_to - groups[-1][0].rolled_to > _ALIKE:
            groups.append([])
        groups[-1].append(row)
    return [
        Rolled(
            sorted({row.run_id for row in group}),
            sorted({row.metric_id for row in group}),
            group[0].rolled_to,
            group[-1].rolled_to,
        )
        for group in groups
    ]


@lru_cache(maxsize=256)
def _queries(
    levels: tuple[int, ...], width: int, limits: frozenset[str], is_repeated: bool, is_one: bool
) -> list[Select[Any]]:
    """One for each level that the curves have rollups of, and one for the points after these. Kept, since building them
    takes longer than the database takes for most."""
    queries: list[Select[Any]] = []
    done: Any = None  # up to where the levels before this one go
    alike = _WHOLE.c.rolled_to.between(bindparam("rolled_from"), bindparam("rolled_to"))
    for level in levels:
        old = schema.rollups.alias("old")
        end = _WHOLE.c.rolled_to // level
        conditions = [*_of(_WHOLE), *_of(old), alike, old.c.bucket < end, *_limits(old.c.bucket, level, limits)]
        if done is not None:
            conditions += [old.c.bucket >= done // level, old.c.bucket >= bindparam("fine_from", type_=BigInteger)]
        queries.append(of_rollups(level, width, conditions, old, _beside_latest(old)))
        done = end * level
    old = points.alias("old")
    conditions = [*_of(old), *_limits(old.c.step, 1, limits)]
    joined = None
    if done is not None:
        conditions.append(old.c.step >= bindparam("step_from", type_=BigInteger))
    if width >= FINE and not is_one:
        # Of one curve the numbers say all. Of several they are how the database finds its way, and this is for each.
        conditions += [*_of(_WHOLE), alike, *([] if done is None else [old.c.step >= done])]
        joined = _beside_latest(old)
    one_a_step = newest if is_repeated else seen
    return [*queries, of_points(one_a_step(width, old, conditions, joined), is_one=is_one)]


def _of(table: Any) -> list[Any]:
    run_ids: Any = bindparam("run_ids", expanding=True)
    return [table.c.run_id.in_(run_ids), table.c.metric_id.in_(bindparam("metric_ids", expanding=True))]


def _limits(column: Any, width: int, limits: frozenset[str]) -> list[Any]:
    first, last = (bindparam(name, type_=BigInteger) // width for name in ("from_step", "to_step"))
    low = [column >= first] if "from_step" in limits else []
    return low + ([column <= last] if "to_step" in limits else [])


def _beside_latest(old: Any) -> Any:
    return _WHOLE.join(old, and_(_WHOLE.c.run_id == old.c.run_id, _WHOLE.c.metric_id == old.c.metric_id))


def _bucket(rows: Sequence[Any]) -> Bucket:
    if len(rows) == 1:  # all but the few where one level ends and the next begins
        _, _, _, step_from, step_to, low, high, total, finite, count, last, flag = rows[0]
        return Bucket(step_from, step_to, low, high, total / finite if finite else None, last, count, flag)
    finite = sum(row.finite for row in rows)
    newest = max(rows, key=lambda row: row.step_to)
    return Bucket(
        step_from=min(row.step_from for row in rows),
        step_to=newest.step_to,
        min=min((row.low for row in rows if row.low is not None), default=None),
        max=max((row.high for row in rows if row.high is not None), default=None),
        mean=sum(row.total for row in rows if row.total is not None) / finite if finite else None,
        last=newest.last,
        count=sum(row.count for row in rows),
        flag=max((row.flag for row in rows if row.flag is not None), default=None),
    )
