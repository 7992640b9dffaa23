"""What changed in many runs since they were read last, at a cost that does not depend on their length."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Integer, String, and_, column, func, or_, select, values

from dapo_core.db import schema
from dapo_core.db.curves import metric_ids
from dapo_core.db.points import curves_of_run, points_of_runs
from dapo_core.run.store_rows import CurvePart, RunMark, finite_value

latest, attempts, checkpoints = schema.latest, schema.attempts, schema.checkpoints
_MAX_STEP: Final = 2**63 - 1


def marks_of(connection: Connection, run_ids: Sequence[str], metrics: Sequence[str]) -> dict[str, RunMark]:
    """The mark of each run, in a fixed number of queries with one row per run."""
    marks: dict[str, dict[str, Any]] = {run_id: {} for run_id in run_ids}
    ids = metric_ids(connection, metrics)
    newest = (
        select(attempts.c.run_id, func.max(attempts.c.attempt).label("attempt"))
        .where(attempts.c.run_id.in_(run_ids))
        .group_by(attempts.c.run_id)
        .subquery("newest")
    )
    here = and_(attempts.c.run_id == newest.c.run_id, attempts.c.attempt == newest.c.attempt)
    newest_values = select(
        latest.c.run_id, func.max(latest.c.ts).label("value_at"), func.max(latest.c.step).label("last")
    )
    committed = and_(checkpoints.c.run_id.in_(run_ids), checkpoints.c.state == "committed")
    saved = select(
        checkpoints.c.run_id,
        func.max(checkpoints.c.step).label("checkpoint"),
        func.max(checkpoints.c.updated_at).label("checkpoint_at"),
    )
    about = (attempts.c[name] for name in ("run_id", "attempt", "step_from", "step_to", "ended_at"))
    for query in (
        select(*about).join(newest, here),
        newest_values.where(latest.c.run_id.in_(run_ids), latest.c.metric_id.in_(ids)).group_by(latest.c.run_id),
        saved.where(committed).group_by(checkpoints.c.run_id),
    ):
        for row in connection.execute(query).mappings():
            marks[row["run_id"]] |= {name: value for name, value in row.items() if name != "run_id"}
    return {run_id: RunMark(**known) for run_id, known in marks.items()}


def curve_part_of(
    connection: Connection, run_id: str, metrics: Sequence[str], mark: RunMark, from_step: int | None, most: int
) -> CurvePart:
    """At most `most` points from `from_step` on (None: all): those of the newest attempt, and of the steps before it
    those of the highest attempt."""
    ids, stored = curves_of_run(connection, run_id, metrics)
    points = stored.table()
    of_run = and_(points.c.run_id == run_id, points.c.metric_id.in_(ids))
    own = points.c.attempt == mark.attempt
    if mark.step_from is not None:
        before = points.c.step <= mark.step_from
    else:
        begin = select(func.min(points.c.step)).where(of_run, own).scalar_subquery()
        before = points.c.step < func.coalesce(begin, _MAX_STEP)
    query = (
        select(points.c.metric_id, points.c.step, points.c.value, points.c.flag)
        .where(of_run, or_(own, and_(points.c.attempt < mark.attempt, before)))
        .order_by(points.c.step, points.c.attempt)
        .limit(most)
    )
    if from_step is not None:
        query = query.where(points.c.step >= from_step)
    rows = connection.execute(query, stored.parameters).all()
    curves: dict[str, dict[int, Any]] = {}
    for metric_id, step, value, flag in rows:
        curves.setdefault(ids[metric_id], {})[step] = (step, *finite_value(value, flag))
    return CurvePart({metric: list(curve.values()) for metric, curve in curves.items()}, len(rows) == most)


def next_parts_of(
    connection: Connection, metrics: Sequence[str], known: Mapping[str, tuple[RunMark, int]], most: int
) -> dict[str, CurvePart]:
    """The curves of many runs in one query, each from a step of its newest attempt on; none if they have `most` points
    or more. A run whose attempts have not said from which step they resumed has to be read by itself."""
    ids = metric_ids(connection, metrics)
    asked = [
        (run_id, mark.attempt, -1 if mark.step_from is None else mark.step_from, since)
        for run_id, (mark, since) in known.items()
        if mark.step_from is not None or mark.attempt <= 1
    ]
    if not asked:
        return {}
    columns = (column("run_id", String), column("attempt", Integer), column("resumed", BigInteger))
    wanted = values(*columns, column("since", BigInteger)).data(asked).cte("wanted")
    stored = points_of_runs(connection, [run_id for run_id, *_ in asked])
    points = stored.table()
    older = and_(points.c.attempt < wanted.c.attempt, points.c.step <= wanted.c.resumed)
    query = (
        select(points.c.run_id, points.c.metric_id, points.c.step, points.c.value, points.c.flag)
        .select_from(wanted.join(points, and_(points.c.run_id == wanted.c.run_id, points.c.step >= wanted.c.since)))
        .where(points.c.metric_id.in_(ids), or_(points.c.attempt == wanted.c.attempt, older))
        .order_by(points.c.step, points.c.attempt)
        .limit(most)
    )
    rows = connection.execute(query, stored.parameters).all()
    if len(rows) == most:
        return {}
    curves: dict[str, dict[str, dict[int, Any]]] = {run_id: {} for run_id, *_ in asked}
    for run_id, metric_id, step, value, flag in rows:
        curves[run_id].setdefault(ids[metric_id], {})[step] = (step, *finite_value(value, flag))
    return {
        run_id: CurvePart({metric: list(curve.values()) for metric, curve in of_run.items()})
        for run_id, of_run in curves.items()
    }
