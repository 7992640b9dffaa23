"""Queries over many runs: the dashboard's table, progress for the operator, results of validation, and GPUs."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Text, and_, case, cast, func, null, or_, select

from dapo_core.db import dialects, schema
from dapo_core.db.curves import metric_ids
from dapo_core.db.points import points_of_runs
from dapo_core.jobspec.layout import Layout
from dapo_core.run.metrics import validation_of
from dapo_core.run.store_rows import CheckpointRow, CurvePoint, Flag, RunProgress, RunTableRow, finite_value
from dapo_core.run.validations import ValidationResult, results_of

History = dict[str, list[tuple[int, float | None, Flag | None]]]

runs, attempts, latest = schema.runs, schema.attempts, schema.latest
alerts, checkpoints, names = schema.alerts, schema.checkpoints, schema.metric_names
# Of JSON as text: far more than a job's spec may have, with all annotations of the object.
MAX_SPEC: Final = 2**20
# Characters of one field.
MAX_FIELD: Final = 2_000
# Metrics of validation: of one run, and of one query, of which a database takes few parameters.
MAX_VALIDATIONS: Final = 500
_MAX_METRICS: Final = 10_000
_SHOWN = "run_id name namespace state reason message created_at started_at ended_at total_steps owner tags".split()


def run_table_of(
    connection: Connection,
    metrics: Sequence[str],
    *,
    namespace: str | None,
    states: Sequence[str] | None,
    owner: str | None,
    search: str | None,
    limit: int | None,
    offset: int,
) -> list[RunTableRow]:
    """Runs, newest first, without their specs and configurations, which are long. With a limit, each namespace has its
    share of it: one that has thousands of runs, or runs of the future, hides no other's newest."""
    lives = _lives().subquery("lives")
    place = func.row_number().over(partition_by=runs.c.namespace, order_by=runs.c.created_at.desc())
    chosen = select(runs.c.run_id).order_by(place, runs.c.created_at.desc(), runs.c.run_id).limit(limit).offset(offset)
    query = (
        select(
            *(runs.c[name] for name in _SHOWN),
            lives.c.attempts,
            lives.c.step,
            _newest_moment().label("updated_at"),
            _open_alerts().label("alerts"),
        )
        .select_from(runs.outerjoin(lives, lives.c.run_id == runs.c.run_id))
        .order_by(runs.c.created_at.desc(), runs.c.run_id)
    )
    if namespace is not None:
        chosen = chosen.where(runs.c.namespace == namespace)
    if states is not None:
        chosen = chosen.where(runs.c.state.in_(states))
    if owner is not None:
        chosen = chosen.where(runs.c.owner == owner)
    if search:
        like = f"%{_escaped(search.lower())}%"
        matches = (func.lower(column).like(like, escape="\\") for column in (runs.c.run_id, runs.c.name))
        chosen = chosen.where(or_(*matches))
    rows = connection.execute(query.where(runs.c.run_id.in_(chosen))).mappings().all()
    # In a query of its own: one row per run and metric takes a tenth of the time of hundreds of columns per run.
    values = _last_values(connection, [row["run_id"] for row in rows], metrics)
    return [
        RunTableRow(**{**row, "attempts": row["attempts"] or 0}, values=values.get(row["run_id"], {})) for row in rows
    ]


def _escaped(search: str) -> str:
    return search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _lives() -> Any:
    """Of each run: the number of attempts, and the last step of the newest."""
    newest = attempts.alias("newest")
    count = (
        select(attempts.c.run_id, func.count().label("attempts"), func.max(attempts.c.attempt).label("newest"))
        .group_by(attempts.c.run_id)
        .subquery("counted")
    )
    step = func.coalesce(newest.c.step_to, newest.c.step_from).label("step")
    return select(count.c.run_id, count.c.attempts, step).join(
        newest, and_(newest.c.run_id == count.c.run_id, newest.c.attempt == count.c.newest)
    )


def _newest_moment() -> Any:
    return select(func.max(latest.c.ts)).where(latest.c.run_id == runs.c.run_id).scalar_subquery()


def _open_alerts() -> Any:
    is_open = and_(alerts.c.run_id == runs.c.run_id, alerts.c.cleared_at.is_(None))
    return select(func.count()).select_from(alerts).where(is_open).scalar_subquery()


def _last_values(
    connection: Connection, run_ids: Sequence[str], metrics: Sequence[str]
) -> dict[str, dict[str, CurvePoint]]:
    """The last value of each metric, by run."""
    ids = metric_ids(connection, metrics)
    columns = (latest.c.run_id, latest.c.metric_id, latest.c.step, latest.c.attempt, latest.c.ts)
    query = select(*columns, latest.c.value, latest.c.flag)
    by_run: dict[str, dict[str, CurvePoint]] = {}
    for run_id, metric_id, step, attempt, ts, value, flag in connection.execute(
        query.where(latest.c.run_id.in_(run_ids), latest.c.metric_id.in_(ids))
    ):
        by_run.setdefault(run_id, {})[ids[metric_id]] = CurvePoint(step, attempt, ts, *finite_value(value, flag))
    return by_run


def progress_of(
    connection: Connection,
    run_ids: Sequence[str],
    metrics: Sequence[str],
    history: Sequence[str],
    first: int,
    last: int,
) -> dict[str, RunProgress]:
    """The progress of the runs, in a fixed number of queries."""
    newest: dict[str, Any] = {}
    of_runs = attempts.c.run_id.in_(run_ids)
    for row in connection.execute(select(attempts).where(of_runs).order_by(attempts.c.attempt)):
        newest[row.run_id] = row
    values, moments = _last_values(connection, run_ids, metrics), _moments(connection, run_ids)
    curves = _histories(connection, run_ids, history, first, last)
    committed, schedules = _newest_checkpoints(connection, run_ids), _schedules(connection, run_ids)
    progress = {}
    for run_id in run_ids:
        attempt = newest.get(run_id)
        number = attempt.attempt if attempt else 0
        progress[run_id] = RunProgress(
            run_id,
            number,
            attempt.step_to if attempt else None,
            moments.get((run_id, number)),
            values.get(run_id, {}),
            committed.get(run_id),
            curves.get(run_id, {}),
            attempt.step_from if attempt else None,
            *schedules.get(run_id, (None, 0, 0, None)),
        )
    return progress


def _schedules(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[int | None, int, int, str]]:
    """Of each run: its steps, the steps between its validations and between its checkpoints, and its namespace."""
    paths = (("schedule", "validateEvery"), ("schedule", "checkpointEvery"), ("data", "validation", 0, "name"))
    validate, checkpoint, first_set = _of_specs(connection, run_ids, paths)
    query = select(runs.c.run_id, runs.c.total_steps, validate, checkpoint, first_set, runs.c.namespace)
    rows = connection.execute(query.where(runs.c.run_id.in_(run_ids)))
    return {
        run_id: (total, _count(validations) if validates else 0, _count(checkpoints), namespace)
        for run_id, total, validations, checkpoints, validates, namespace in rows
    }


def _moments(connection: Connection, run_ids: Sequence[str]) -> dict[tuple[str, int], float]:
    """The time of each attempt's newest value, by run and attempt."""
    newest = select(latest.c.run_id, latest.c.attempt, func.max(latest.c.ts)).where(latest.c.run_id.in_(run_ids))
    rows = connection.execute(newest.group_by(latest.c.run_id, latest.c.attempt))
    return {(run_id, attempt): ts for run_id, attempt, ts in rows}


def _histories(
    connection: Connection, run_ids: Sequence[str], metrics: Sequence[str], first: int, last: int
) -> dict[str, History]:
    ids = metric_ids(connection, metrics)
    # Only the first and the last steps of each curve: what is in between is not read.
    begin, end = latest.alias("a"), latest.alias("b")
    stored = points_of_runs(connection, run_ids)
    points = stored.table()
    by_run: dict[str, dict[str, dict[int, Any]]] = {}
    for bound, near in (
        (begin, points.c.step <= first),
        # A step that is near the least number would have none below it.
        (end, and_(points.c.step > dialects.greatest(connection, end.c.step, 0) - last, points.c.step <= end.c.step)),
    ):
        here = and_(bound.c.run_id == points.c.run_id, bound.c.metric_id == points.c.metric_id, near)
        query = (
            select(points.c.run_id, points.c.metric_id, points.c.step, points.c.value, points.c.flag)
            .select_from(bound.join(points, here))
            .where(bound.c.run_id.in_(run_ids), bound.c.metric_id.in_(ids))
            # The same once more, which a union of tables needs to be read by key.
            .where(points.c.run_id.in_(run_ids), points.c.metric_id.in_(ids))
            .order_by(points.c.attempt)
        )
        for run_id, metric_id, step, value, flag in connection.execute(query, stored.parameters):
            by_run.setdefault(run_id, {}).setdefault(ids[metric_id], {})[step] = (step, *finite_value(value, flag))
    return {
        run_id: {name: [curve[step] for step in sorted(curve)] for name, curve in of_run.items()}
        for run_id, of_run in by_run.items()
    }


def _newest_checkpoints(connection: Connection, run_ids: Sequence[str]) -> dict[str, CheckpointRow]:
    committed = and_(checkpoints.c.run_id.in_(run_ids), checkpoints.c.state == "committed")
    newest = (
        select(checkpoints.c.run_id, func.max(checkpoints.c.step).label("step"))
        .where(committed)
        .group_by(checkpoints.c.run_id)
        .subquery("newest")
    )
    here = and_(checkpoints.c.run_id == newest.c.run_id, checkpoints.c.step == newest.c.step)
    rows = connection.execute(select(checkpoints).join(newest, here)).mappings()
    return {row["run_id"]: CheckpointRow(**row) for row in rows}


def gpus_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, int]:
    """GPUs that the pods of each run request together, by its spec."""
    pods = [("topology", role, name) for role in ("trainer", "rollout") for name in ("replicas", "gpusPerPod")]
    mode, *counts = _of_specs(connection, run_ids, [("topology", "mode"), *pods])
    query = select(runs.c.run_id, mode, *counts).where(runs.c.run_id.in_(run_ids))
    return {
        run_id: Layout(mode == "Separated", *map(_count, numbers)).gpus
        for run_id, mode, *numbers in connection.execute(query)
    }


def spec_fields_of(connection: Connection, run_ids: Sequence[str], paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """Fields of the specs as text, by run and dotted path; what a spec does not have is left out, and a text is cut to
    MAX_FIELD characters."""
    columns = [
        func.substr(each, 1, MAX_FIELD) for each in _of_specs(connection, run_ids, [p.split(".") for p in paths])
    ]
    found: dict[str, dict[str, str]] = {}
    query = select(runs.c.run_id, *columns).where(runs.c.run_id.in_(run_ids))
    for run_id, *values in connection.execute(query):
        found[run_id] = {path: str(value) for path, value in zip(paths, values, strict=True) if value is not None}
    return found


# In JSON as text: what a database's own text cannot hold, a null character or half of a surrogate pair.
_NO_TEXT: Final = (
    r"\\u(0000|[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F]))" r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)


def _of_specs(
    connection: Connection, run_ids: Sequence[str], paths: Iterable[Sequence[str | int]]
) -> list[ColumnElement[str | None]]:
    """Fields of the runs' specs as text; null where there is none, and for a spec that a query of many runs does not
    parse: one that is longer than any job's, or has a character that JSON may have and the database's text may not,
    which would end the query for all."""
    spec = cast(runs.c.spec, Text)
    # Few specs have any escape; the other condition takes ten times as long.
    escaped = and_(spec.contains("\\u", autoescape=True), spec.regexp_match(_NO_TEXT))
    bad = case((dialects.octets(connection, spec) > MAX_SPEC, True), else_=escaped)
    unreadable = connection.scalars(select(runs.c.run_id).where(runs.c.run_id.in_(run_ids), bad)).all()
    fields: list[ColumnElement[str | None]] = [runs.c.spec[("spec", *path)].as_string() for path in paths]
    return [case((runs.c.run_id.in_(unreadable), null()), else_=field) for field in fields] if unreadable else fields


def _count(value: object) -> int:
    """A number of a spec on record, of at most nine digits; 0 for anything else, which its writer alone has to mind."""
    text = str(value)
    return int(text) if len(text) <= 9 and text.isascii() and text.isdecimal() else 0


def validations_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[ValidationResult]]:
    """The results of validation, by run; of a step that was repeated, the newest attempt's."""
    means = _means_of(connection, run_ids)
    if len(means) > _MAX_METRICS and len(run_ids) > 1:
        half = len(run_ids) // 2
        return validations_of(connection, run_ids[:half]) | validations_of(connection, run_ids[half:])
    stored = points_of_runs(connection, run_ids)
    points = stored.table()
    query = (
        select(points.c.run_id, points.c.metric_id, points.c.step, points.c.value)
        .where(points.c.run_id.in_(run_ids), points.c.metric_id.in_(means))
        .order_by(points.c.run_id, points.c.metric_id, points.c.step, points.c.attempt)
    )
    curves: dict[str, dict[str, dict[int, float | None]]] = {}
    for run_id, metric_id, step, value in connection.execute(query, stored.parameters):
        curves.setdefault(run_id, {}).setdefault(means[metric_id], {})[step] = value
    results = {
        run_id: results_of({name: list(curve.items()) for name, curve in of_run.items()})
        for run_id, of_run in curves.items()
    }
    return {run_id: found for run_id, found in results.items() if found}


def _means_of(connection: Connection, run_ids: Sequence[str]) -> dict[int, str]:
    """The metrics with means of validation that any of the runs has, by ID; of each run MAX_VALIDATIONS at most.

    What other runs named theirs is not read: anybody may add any number of names."""
    place = func.row_number().over(partition_by=latest.c.run_id, order_by=latest.c.metric_id).label("place")
    found = (
        select(names.c.metric_id, names.c.name, place)
        .select_from(latest.join(names, names.c.metric_id == latest.c.metric_id))
        .where(latest.c.run_id.in_(run_ids), names.c.name.like("val-core/%/acc/mean@%"))
        .subquery("found")
    )
    query = select(found.c.metric_id, found.c.name).where(found.c.place <= MAX_VALIDATIONS).distinct()
    known = connection.execute(query)
    return {metric_id: name for metric_id, name in known if (of := validation_of(name)) and of.statistic == "mean"}
