"""Aggregates of curves: extremes, sums and last values of every 16 and every 256 steps, updated as points are written.

`latest.rolled_to` is the step up to which a curve's rollups are complete. A write beyond the end of a bucket adds the
rollups up to there; one that touches steps below recomputes their buckets from the points, so that rollups are right
even if points arrive late, twice or from an earlier attempt.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Subquery,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
    update,
)

from dapo_core.db import dialects, schema
from dapo_core.db.points import Points

FINE: Final = 16
COARSE: Final = 256
COLUMNS: Final = ("step_from", "step_to", "low", "high", "total", "finite", "count", "last", "flag")

rollups, latest = schema.rollups, schema.latest
# Of all metrics of the run: a list of those that are written would be a different statement for each length.
_ROLLED_TO: Final = select(latest.c.metric_id, latest.c.rolled_to).where(latest.c.run_id == bindparam("run"))


def seen(width: int, old: FromClause, conditions: Sequence[Any], joined: Any = None) -> Subquery:
    """The points of `old` that meet `conditions`, one per step, with the slot (step / width) of each; `joined` is the
    join they are selected from.

    A subquery that PostgreSQL must not flatten: for `step / width` it would expect as many groups as there are steps,
    and neither hash them in memory nor aggregate in parallel. The offset is quoted, because it would take any other
    constant for a real limit, which rules out parallel workers.
    """
    query = select(*_columns(width, old)).select_from(old if joined is None else joined).where(*conditions)
    return query.suffix_with("OFFSET '0'", dialect="postgresql").subquery("seen")


def newest(width: int, old: FromClause, conditions: Sequence[Any], joined: Any = None) -> Subquery:
    """As `seen`, where a step may have points of several attempts: that of the highest attempt.

    It is the one that is followed by a point of another step, in the order of the key. Only this way needs no sort and
    no statistics: an anti-join for higher attempts compares each point with each other one in a table that was never
    analyzed.
    """
    curve, order = (old.c.run_id, old.c.metric_id), (old.c.step, old.c.attempt)
    following = func.lead(old.c.step).over(partition_by=curve, order_by=order).label("following")
    query = select(*_columns(width, old), following).select_from(old if joined is None else joined).where(*conditions)
    every = query.subquery("every")
    columns = [column for column in every.c if column.name != "following"]
    return select(*columns).where(every.c.step.is_distinct_from(every.c.following)).subquery("seen")


def _columns(width: int, old: FromClause) -> list[Any]:
    slot = (old.c.step // bindparam(None, width, literal_execute=True)).label("slot")
    return [old.c.run_id, old.c.metric_id, old.c.step, old.c.value, old.c.flag, slot]


def maintain(connection: Connection, run_id: str, touched: Mapping[int, Collection[int]], stored: Points) -> None:
    """Updates the run's rollups after points of steps `touched` (by metric ID) were written; `stored` are all of its
    points.

    The caller holds the run's lock (`dialects.lock_run`), so that no other writer interferes.
    """
    rolled = _rolled_to(connection, run_id)
    late: dict[int, set[int]] = {}
    ahead: dict[tuple[int, int], set[int]] = {}
    for metric_id, steps in touched.items():
        begin, end = rolled[metric_id], max(steps) // FINE * FINE
        for bucket in {step // FINE for step in steps if step < begin}:
            late.setdefault(bucket, set()).add(metric_id)
        if end > begin:
            ahead.setdefault((begin, end), set()).add(metric_id)
    for first, last, metric_ids in _spans(late):
        _roll(connection, run_id, stored, metric_ids, first * FINE, (last + 1) * FINE)
    for first, last, metric_ids in _spans(_complete(late, rolled)):
        _roll_coarse(connection, run_id, metric_ids, first, last + 1)
    for (begin, end), metric_ids in ahead.items():
        _roll(connection, run_id, stored, metric_ids, begin, end)
        if end // COARSE > begin // COARSE:
            _roll_coarse(connection, run_id, metric_ids, begin // COARSE, end // COARSE)
        of_curves = and_(latest.c.run_id == run_id, latest.c.metric_id.in_(metric_ids))
        connection.execute(update(latest).where(of_curves).values(rolled_to=end))


def _rolled_to(connection: Connection, run_id: str) -> dict[int, int]:
    rows = connection.execute(_ROLLED_TO, {"run": run_id})
    return {metric_id: rolled_to for metric_id, rolled_to in rows}


def _complete(late: Mapping[int, set[int]], rolled: Mapping[int, int]) -> dict[int, set[int]]:
    """The coarse buckets of these fine ones, if they are rolled up already."""
    coarse: dict[int, set[int]] = {}
    for bucket, metric_ids in late.items():
        above = bucket * FINE // COARSE
        complete = {metric_id for metric_id in metric_ids if (above + 1) * COARSE <= rolled[metric_id]}
        if complete:
            coarse.setdefault(above, set()).update(complete)
    return coarse


def _spans(buckets: Mapping[int, set[int]]) -> list[tuple[int, int, set[int]]]:
    """Adjacent buckets of the same metrics as (first, last, metrics): one statement for each, not for each bucket."""
    spans: list[tuple[int, int, set[int]]] = []
    for bucket in sorted(buckets):
        if spans and spans[-1][1] == bucket - 1 and spans[-1][2] == buckets[bucket]:
            spans[-1] = (spans[-1][0], bucket, buckets[bucket])
        else:
            spans.append((bucket, bucket, buckets[bucket]))
    return spans


def _roll(
    connection: Connection, run_id: str, stored: Points, metric_ids: Collection[int], begin: int, end: int
) -> None:
    """Stores the fine buckets of the steps from `begin` to before `end`."""
    old = stored.table("old")
    of_curves = and_(old.c.run_id == run_id, old.c.metric_id.in_(sorted(metric_ids)))
    fine = newest(FINE, old, [of_curves, old.c.step >= begin, old.c.step < end])
    _store(connection, FINE, of_points(fine, stored.table("final")), stored.parameters)


def _roll_coarse(connection: Connection, run_id: str, metric_ids: Collection[int], first: int, end: int) -> None:
    """Stores the coarse buckets from number `first` to before `end`, from fine ones."""
    old, share = rollups.alias("old"), COARSE // FINE
    of_curves = and_(old.c.run_id == run_id, old.c.metric_id.in_(sorted(metric_ids)))
    inside = and_(old.c.bucket >= first * share, old.c.bucket < end * share)
    _store(connection, COARSE, of_rollups(FINE, COARSE, [of_curves, inside], old))


def _store(
    connection: Connection, width: int, source: Select[Any], parameters: Mapping[str, Any] = MappingProxyType({})
) -> None:
    buckets = source.subquery()
    columns = ["run_id", "metric_id", "width", "bucket", *COLUMNS]
    values = [
        buckets.c.run_id,
        buckets.c.metric_id,
        literal(width),
        buckets.c.slot,
        *(buckets.c[name] for name in COLUMNS),
    ]
    # SQLite parses the ON of ON CONFLICT as that of a join, unless the SELECT has a WHERE.
    statement = dialects.insert(connection, rollups).from_select(columns, select(*values).where(buckets.c.count > 0))
    key, new = dialects.key_of(rollups), statement.excluded
    # Only of a thinned run are there fewer points than the bucket counted: what is gone stays in it.
    is_partial = new["count"] < rollups.c["count"]
    changes = {name: case((is_partial, _merged(connection, name, new)), else_=new[name]) for name in COLUMNS}
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changes), parameters)


def _merged(connection: Connection, name: str, new: Any) -> Any:
    """A column of a bucket some of whose points were thinned away, beside those that a resumed run has written: it
    keeps its sums and counts, gets new extremes, and ends with the later of the two."""
    old = rollups.c[name]
    if name in ("low", "step_from"):
        return dialects.least(connection, func.coalesce(old, new[name]), func.coalesce(new[name], old))
    if name in ("high", "step_to"):
        return dialects.greatest(connection, func.coalesce(old, new[name]), func.coalesce(new[name], old))
    if name == "last":
        return case((new.step_to >= rollups.c.step_to, new["last"]), else_=old)
    return func.coalesce(new[name], old) if name == "flag" else old


def of_points(old: FromClause, final: FromClause, *, is_one: bool = False) -> Select[Any]:
    """Points (`seen`, `newest`) as buckets: run_id, metric_id, slot and the columns of a rollup; `final` is where they
    are, once more, for the last value of each.

    `is_one`: all are of one curve, whose parameters are `run_id` and `metric_id`; not sorting them by curve takes a
    third less time.
    """
    curve: list[Any] = [old.c.run_id, old.c.metric_id]
    shown = [bindparam(column.name, type_=column.type).label(column.name) for column in curve] if is_one else curve
    grouped = (
        select(
            *shown,
            old.c.slot,
            func.min(old.c.step).label("step_from"),
            func.max(old.c.step).label("step_to"),
            func.min(old.c.value).label("low"),
            func.max(old.c.value).label("high"),
            func.sum(old.c.value).label("total"),
            func.count(old.c.value).label("finite"),
            func.count().label("count"),
            func.max(old.c.flag).label("flag"),
        )
        .group_by(*([] if is_one else curve), old.c.slot)
        .subquery("grouped")
    )
    here = and_(
        final.c.run_id == grouped.c.run_id,
        final.c.metric_id == grouped.c.metric_id,
        final.c.step == grouped.c.step_to,
    )
    return _with_last(
        grouped, select(final.c.value).where(here).order_by(final.c.attempt.desc()).limit(1).scalar_subquery()
    )


def of_rollups(level: int, width: int, conditions: Sequence[Any], old: FromClause, joined: Any = None) -> Select[Any]:
    """Rollups of `level` as wider buckets: the same columns as `of_points`."""
    share = width // level
    # The last value of nearly all slots; only where a slot does not end with a rollup it is looked up.
    at_end = case((old.c.bucket % share == share - 1, old.c.last))
    slot = (old.c.bucket // bindparam(None, share, literal_execute=True)).label("slot")
    grouped = (
        select(
            old.c.run_id,
            old.c.metric_id,
            slot,
            func.max(old.c.bucket).label("newest"),
            func.max(at_end).label("at_end"),
            func.min(old.c.step_from).label("step_from"),
            func.max(old.c.step_to).label("step_to"),
            func.min(old.c.low).label("low"),
            func.max(old.c.high).label("high"),
            func.sum(old.c.total).label("total"),
            cast(func.sum(old.c.finite), BigInteger).label("finite"),
            cast(func.sum(old.c.count), BigInteger).label("count"),
            func.max(old.c.flag).label("flag"),
        )
        .select_from(old if joined is None else joined)
        .where(old.c.width == level, *conditions)
        .group_by(old.c.run_id, old.c.metric_id, slot)
        .subquery("grouped")
    )
    final = rollups.alias("final")
    here = and_(
        final.c.run_id == grouped.c.run_id,
        final.c.metric_id == grouped.c.metric_id,
        final.c.width == level,
        final.c.bucket == grouped.c.newest,
    )
    return _with_last(grouped, func.coalesce(grouped.c.at_end, select(final.c.last).where(here).scalar_subquery()))


def _with_last(grouped: Subquery, last: ColumnElement[Any]) -> Select[Any]:
    """The last value is looked up for each bucket: with a join, databases read the whole table again."""
    value = last.label("last")
    columns = [value if name == "last" else grouped.c[name] for name in COLUMNS]
    return select(grouped.c.run_id, grouped.c.metric_id, grouped.c.slot, *columns)
