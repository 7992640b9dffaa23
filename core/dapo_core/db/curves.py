"""Curves as pages draw them: some hundred buckets each, aggregated by the database, from rollups where possible."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Integer, Select, and_, bindparam, func, literal, select

from dapo_core.db import schema
from dapo_core.db.points import Place, Points, curves_of_run, points_of, points_of_runs, table_at
from dapo_core.db.rollups import COARSE, FINE, newest, of_points, of_rollups, seen
from dapo_core.run.store_rows import Bucket, CurvePoint

Series = tuple[str, str]
"""Run ID and metric."""
Sparklines = dict[str, list[float | None]]

latest, attempts, names = schema.latest, schema.attempts, schema.metric_names
_WHOLE: Final = latest.alias("whole")
# Rollups of curves that are written together end at most so many steps apart.
_ALIKE: Final = 16 * COARSE
# Made once: building and hashing a query takes longer than running a short one.
_RUN_IDS: Final[Any] = bindparam("run_ids", expanding=True)
_METRIC_IDS: Final[Any] = bindparam("metric_ids", expanding=True)
_OF_CURVES: Final = and_(latest.c.run_id.in_(_RUN_IDS), latest.c.metric_id.in_(_METRIC_IDS))
_IDS: Final = select(names.c.metric_id, names.c.name).where(names.c.name.in_(bindparam("metrics", expanding=True)))
_SPANS: Final = select(attempts.c.run_id, attempts.c.attempt, attempts.c.step_from, attempts.c.step_to).where(
    attempts.c.run_id.in_(_RUN_IDS)
)
_THINNED_TO: Final = select(func.max(latest.c.thinned_to)).where(_OF_CURVES)
_ROLLED_TO: Final = (
    select(latest.c.run_id, latest.c.metric_id, latest.c.rolled_to).where(_OF_CURVES).order_by(latest.c.rolled_to)
)


@dataclass(frozen=True)
class Reach:
    """Of some runs: the first and last step, and whether an attempt may have repeated steps of an earlier one."""

    first: int
    last: int
    is_repeated: bool


@dataclass(frozen=True)
class Rolled:
    """Curves whose rollups end between two steps that are close together."""

    run_ids: Sequence[str]
    metric_ids: Sequence[int]
    rolled_from: int
    rolled_to: int

    def levels(self, width: int) -> tuple[int, ...]:
        """The rollup levels of which buckets of `width` consist."""
        return tuple(level for level in (COARSE, FINE) if width % level == 0) if self.rolled_to else ()

    def parameters(self, limits: Mapping[str, int]) -> dict[str, Any]:
        """Parameters of the queries of these curves."""
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
    """The curves in at most `most` + 1 buckets each, with common boundaries, so that they can be overlaid."""
    if len(run_ids) == 1:
        ids, stored = curves_of_run(connection, run_ids[0], metrics)
    else:
        ids, stored = metric_ids(connection, metrics), points_of_runs(connection, run_ids)
    reach = _reach(connection, run_ids)
    begin = reach.first if from_step is None else from_step
    end = max(reach.last if to_step is None else to_step, begin)
    width = bucket_width(begin, end, most)
    if width < FINE and _thinned(connection, run_ids, list(ids)):
        width = FINE
    conditions = _range(from_step, to_step)
    return bucketed(connection, run_ids, ids, stored, width, conditions, reach.is_repeated)


def points_since(
    connection: Connection, run_id: str, metrics: Sequence[str], after_step: int
) -> dict[str, list[CurvePoint]]:
    """Points of several metrics after `after_step`; of each step that of the highest attempt."""
    ids, stored = curves_of_run(connection, run_id, metrics)
    parameters = {"run": run_id, "metric_ids": list(ids), "step": after_step} | stored.parameters
    by_step: dict[str, dict[int, CurvePoint]] = {metric: {} for metric in metrics}
    for metric_id, *point in connection.execute(_several(stored.place), parameters).all():
        by_step[ids[metric_id]][point[0]] = CurvePoint._make(point)
    return {metric: list(curve.values()) for metric, curve in by_step.items()}


def curve_of(connection: Connection, run_id: str, metric: str, after_step: int | None) -> list[CurvePoint]:
    """The points of one metric, of all steps or after `after_step`; of each step that of the highest attempt."""
    stored = points_of(connection, run_id)
    parameters = {"run": run_id, "metric": metric, "step": after_step} | stored.parameters
    rows = connection.execute(_one(stored.place, after_step is not None), parameters).all()
    # Columns by position: by name, unpacking a row takes as long as fetching it.
    return list(map(CurvePoint._make, {row[0]: row for row in rows}.values()))


def _point(points: Any) -> list[Any]:
    return [points.c[name] for name in CurvePoint._fields]


@lru_cache
def _several(place: Place) -> Select[Any]:
    """Points of metrics of a run after a step. As `_queries`, cached."""
    points: Any = table_at(place)
    of_metrics = points.c.metric_id.in_(bindparam("metric_ids", expanding=True, type_=Integer))
    new = (points.c.run_id == bindparam("run"), of_metrics, points.c.step > bindparam("step", type_=BigInteger))
    query = select(points.c.metric_id, *_point(points)).where(*new)
    return query.order_by(points.c.metric_id, points.c.step, points.c.attempt)


@lru_cache
def _one(place: Place, is_part: bool) -> Select[Any]:
    """Points of a metric of a run, by its name; `is_part`: after a step."""
    points: Any = table_at(place)
    metric_id = select(names.c.metric_id).where(names.c.name == bindparam("metric")).scalar_subquery()
    query = select(*_point(points)).where(points.c.run_id == bindparam("run"), points.c.metric_id == metric_id)
    if is_part:
        query = query.where(points.c.step > bindparam("step", type_=BigInteger))
    return query.order_by(points.c.step, points.c.attempt)


def moments_of(connection: Connection, run_id: str, metric: str, most: int) -> list[tuple[int, float]]:
    """(step, Unix seconds) of at most `most` + 1 points of a metric, each the last of its bucket."""
    ids, stored = curves_of_run(connection, run_id, [metric])
    points = stored.table()
    of_metric = (points.c.run_id == run_id, points.c.metric_id.in_(ids))
    last = connection.execute(select(func.max(points.c.step)).where(*of_metric), stored.parameters).scalar() or 0
    width = ceil((last + 1) / most)
    ends = select(literal(width - 1).label("end")).cte("ends", recursive=True)
    ends = ends.union_all(select(ends.c.end + width).where(ends.c.end < last))
    # One look-up per bucket: there are as many points in between as the run is long.
    inside = and_(points.c.step <= ends.c.end, points.c.step > ends.c.end - width)
    step = select(func.max(points.c.step)).where(*of_metric, inside).scalar_subquery().label("step")
    lasts = select(step).select_from(ends).subquery("lasts")
    ts = select(points.c.ts).where(*of_metric, points.c.step == lasts.c.step)
    newest_ts = ts.order_by(points.c.attempt.desc()).limit(1).scalar_subquery()
    query = select(lasts.c.step, newest_ts).where(lasts.c.step.is_not(None)).order_by("step")
    rows = connection.execute(query, stored.parameters)
    return [(step, ts) for step, ts in rows]


def metric_ids(connection: Connection, metrics: Iterable[str]) -> dict[int, str]:
    """Names of those `metrics` that any run has, by their ID."""
    rows = connection.execute(_IDS, {"metrics": sorted(set(metrics))})
    return {metric_id: name for metric_id, name in rows}


def bucket_width(begin: int, end: int, most: int) -> int:
    """Steps per bucket: the fewest that need at most `most` buckets, in whole rollups if one is that narrow."""
    width = max(1, ceil((end - begin + 1) / max(1, most)))
    for level in (COARSE, FINE):
        if width >= level:
            return ceil(width / level) * level
    return width


def _reach(connection: Connection, run_ids: Sequence[str]) -> Reach:
    rows = connection.execute(_SPANS, {"run_ids": run_ids}).all()
    first = min((row.step_from or 0 for row in rows), default=0)
    last = max((row.step_to for row in rows if row.step_to is not None), default=first)
    return Reach(first, last, len(rows) > len({row.run_id for row in rows}))


def _range(from_step: int | None, to_step: int | None) -> dict[str, int]:
    limits = {"from_step": from_step, "to_step": to_step}
    return {name: step for name, step in limits.items() if step is not None}


def _thinned(connection: Connection, run_ids: Sequence[str], ids: Sequence[int]) -> bool:
    return bool(connection.execute(_THINNED_TO, {"run_ids": run_ids, "metric_ids": ids}).scalar())


def bucketed(
    connection: Connection,
    run_ids: Sequence[str],
    ids: Mapping[int, str],
    stored: Points,
    width: int,
    limits: Mapping[str, int],
    is_repeated: bool,
) -> dict[Series, list[Bucket]]:
    """Buckets from coarse rollups as far as these go, then from fine ones, and from points at the end."""
    parts: dict[tuple[str, int, int], list[Any]] = {}
    for reach in _rolled(connection, run_ids, list(ids), width):
        parameters = reach.parameters(limits) | stored.parameters
        is_one = len(reach.run_ids) == len(reach.metric_ids) == 1
        several = is_repeated or stored.is_double
        for query in _queries(stored.place, reach.levels(width), width, frozenset(limits), several, is_one):
            # All at once: fetching rows one by one takes longer than the query.
            for row in connection.execute(query, parameters).all():
                parts.setdefault(row[:3], []).append(row)
    curves: dict[Series, list[Bucket]] = {(run_id, name): [] for run_id in run_ids for name in ids.values()}
    for (run_id, metric_id, _), rows in sorted(parts.items(), key=lambda item: item[0]):
        curves[run_id, ids[metric_id]].append(_bucket(rows))
    return {series: curve for series, curve in curves.items() if curve}


def _rolled(connection: Connection, run_ids: Sequence[str], ids: Sequence[int], width: int) -> list[Rolled]:
    """The curves, grouped by how far their rollups go; one group where rollups are not used."""
    if not run_ids or not ids:
        return []
    if width < FINE:
        return [Rolled(sorted(run_ids), sorted(ids), 0, 0)]
    rows = connection.execute(_ROLLED_TO, {"run_ids": run_ids, "metric_ids": ids})
    groups: list[list[Any]] = []
    for row in rows:
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
    place: Place, levels: tuple[int, ...], width: int, limits: frozenset[str], is_repeated: bool, is_one: bool
) -> list[Select[Any]]:
    """One query for each level of rollups, and one for the points after them. Cached, because building a query mostly
    takes longer than running it."""
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
    stored: Any = table_at(place, "old")
    conditions = [*_of(stored), *_limits(stored.c.step, 1, limits)]
    joined = None
    if done is not None:
        conditions.append(stored.c.step >= bindparam("step_from", type_=BigInteger))
    if width >= FINE and not is_one:
        # Of one curve the numbers say all. Of several they are how the database finds its way, and this is for each.
        conditions += [*_of(_WHOLE), alike, *([] if done is None else [stored.c.step >= done])]
        joined = _beside_latest(stored)
    one_a_step = newest if is_repeated else seen
    return [*queries, of_points(one_a_step(width, stored, conditions, joined), table_at(place, "final"), is_one=is_one)]


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


def sparklines_of(connection: Connection, run_ids: Sequence[str], metric: str, most: int) -> Sparklines:
    """The metric of each run over its own steps: means of at most `most` buckets, None without a finite value."""
    ids = metric_ids(connection, [metric])
    of_curves = and_(latest.c.run_id.in_(run_ids), latest.c.metric_id.in_(ids))
    alike: dict[int, list[str]] = {}
    for run_id, last in connection.execute(select(latest.c.run_id, latest.c.step).where(of_curves)):
        # Widths are powers of two, so that runs of similar lengths share a query.
        alike.setdefault(1 << (max(1, ceil((last + 1) / most)) - 1).bit_length(), []).append(run_id)
    sparklines: Sparklines = {}
    for width, group in alike.items():
        repeated = _repeated(connection, group)
        plain = [run_id for run_id in group if run_id not in repeated and width < FINE]
        sparklines |= _means(connection, plain, next(iter(ids)), width)
        others = [run_id for run_id in group if run_id not in sparklines]
        stored = points_of_runs(connection, others)
        for (run_id, _), curve in bucketed(connection, others, ids, stored, width, {}, bool(repeated)).items():
            sparklines[run_id] = [bucket.mean for bucket in curve]
    return sparklines


def _repeated(connection: Connection, run_ids: Sequence[str]) -> set[str]:
    """Runs of which an attempt may have repeated steps of an earlier one."""
    query = select(attempts.c.run_id).where(attempts.c.run_id.in_(run_ids)).group_by(attempts.c.run_id)
    return set(connection.execute(query.having(func.count() > 1)).scalars())


def _means(connection: Connection, run_ids: Sequence[str], metric_id: int, width: int) -> Sparklines:
    """Only the means, of short runs, which most are: a fifth of the work of whole buckets."""
    stored = points_of_runs(connection, run_ids)
    points = stored.table()
    slot = (points.c.step // bindparam(None, width, literal_execute=True)).label("slot")
    of_curves = and_(points.c.run_id.in_(run_ids), points.c.metric_id == metric_id)
    query = select(points.c.run_id, func.avg(points.c.value)).where(of_curves).group_by(points.c.run_id, slot)
    means: Sparklines = {}
    for run_id, mean in connection.execute(query.order_by(points.c.run_id, slot), stored.parameters):
        means.setdefault(run_id, []).append(mean)
    return means
