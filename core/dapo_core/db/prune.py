"""Retention: runs that ended long ago are thinned out to one point in 16 steps and later removed, as are the oldest
while the store has too many points. Runs that have not ended, or are suspended, are never changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    delete,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from dapo_core.db import dialects, schema
from dapo_core.db.convert import convert_run, has_finished
from dapo_core.db.rollups import FINE

DAY: Final = 86_400.0
runs, latest, rollups, run_keys = schema.runs, schema.latest, schema.rollups, schema.run_keys
named, points = schema.points, schema.curve_points


@dataclass(frozen=True)
class Keep:
    """Retention limits; None: no limit. Days count from the end of a run; `most_points` is for the whole store."""

    whole_days: float | None = None
    thinned_days: float | None = None
    most_points: int | None = None
    run_id: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class EndedRun:
    """An ended run, and how many points it has."""

    run_id: str
    namespace: str
    ended_at: float
    points: int
    is_thinned: bool


@dataclass(frozen=True)
class PrunePlan:
    """What `apply` does. `bytes_a_point` is the size of this store, indexes included, divided by its points."""

    thin: Sequence[EndedRun]
    remove: Sequence[EndedRun]
    points: int
    bytes_a_point: float

    @property
    def points_gone(self) -> int:
        return sum(run.points for run in self.remove) + sum(run.points - run.points // FINE for run in self.thin)

    @property
    def bytes_gone(self) -> float:
        return self.points_gone * self.bytes_a_point


def plan(url: str, keep: Keep, now: float) -> PrunePlan:
    """What `keep` would thin and remove now. Raises StoreError."""
    engine = dialects.open_engine(url, read_only=True)
    try:
        with engine.connect() as connection:
            # Only a limit of the whole store needs the exact number, for which all of the table is read.
            total = None if keep.most_points is not None else dialects.estimated_rows(connection, named, points)
            if total is None:
                total = sum(
                    int(connection.execute(select(func.count()).select_from(table)).scalar_one())
                    for table in (named, points)
                )
            ended = _ended(connection, keep)
            size = dialects.size(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, "a query") from error
    finally:
        engine.dispose()
    return choose(ended, keep, now, total, size / total if total else 0.0)


def choose(ended: Sequence[EndedRun], keep: Keep, now: float, total: int, bytes_a_point: float) -> PrunePlan:
    """The plan: remove what is too old, then the oldest while there are too many points; thin out the rest. Pure."""
    oldest_first = sorted(ended, key=lambda run: run.ended_at)
    remove = [run for run in oldest_first if _older(run, keep.thinned_days, now)]
    thin = [
        run for run in oldest_first if run not in remove and not run.is_thinned and _older(run, keep.whole_days, now)
    ]
    if keep.most_points is not None:
        left = PrunePlan(thin, remove, total, bytes_a_point)
        for run in oldest_first:
            if total - left.points_gone <= keep.most_points:
                break
            if run not in remove:
                remove = [*remove, run]
                thin = [other for other in thin if other != run]
                left = PrunePlan(thin, remove, total, bytes_a_point)
    return PrunePlan(thin, remove, total, bytes_a_point)


def apply(url: str, plan: PrunePlan) -> None:
    """Carries out `plan`, one transaction for each metric of a run, so that none is long, and it may be interrupted and
    repeated. Raises StoreError."""
    engine = dialects.open_engine(url)
    try:
        for work, chosen in ((_remove_metric, plan.remove), (_thin, plan.thin)):
            for run in chosen:
                with engine.connect() as connection:
                    metric_ids = connection.execute(select(latest.c.metric_id).where(latest.c.run_id == run.run_id))
                    ids = sorted(metric_ids.scalars())
                if work is _thin:
                    convert_run(engine, run.run_id)
                for metric_id in ids:
                    _if_ended(engine, run.run_id, partial(work, metric_id=metric_id))
        for run in plan.remove:
            _if_ended(engine, run.run_id, _remove)
    except SQLAlchemyError as error:
        raise dialects.translate(error, "the removal of old runs") from error
    finally:
        engine.dispose()


def _if_ended(engine: Engine, run_id: str, work: Callable[[Connection, str], None]) -> None:
    """Does `work` on a run in a transaction, unless the run was resumed since the plan was made."""
    with engine.begin() as connection:
        dialects.lock_run(connection, run_id)
        if _has_ended(connection, run_id):
            work(connection, run_id)


def _older(run: EndedRun, days: float | None, now: float) -> bool:
    return days is not None and now - run.ended_at > days * DAY


def _ended(connection: Connection, keep: Keep) -> list[EndedRun]:
    chosen: list[ColumnElement[bool]] = [has_finished()]
    if keep.run_id is not None:
        chosen.append(runs.c.run_id == keep.run_id)
    if keep.namespace is not None:
        chosen.append(runs.c.namespace == keep.namespace)
    # By the key of the points, for each run: grouping by run would read the points of all runs.
    numbered = run_keys.join(points, points.c.run_key == run_keys.c.run_key)
    of_run = (
        select(func.count()).where(named.c.run_id == runs.c.run_id).scalar_subquery()
        + select(func.count()).select_from(numbered).where(run_keys.c.run_id == runs.c.run_id).scalar_subquery()
    )
    # A run is thinned once nothing that is rolled up is left to thin, also if it was resumed since.
    left = func.max(latest.c.rolled_to - latest.c.thinned_to)
    to_thin = select(left).where(latest.c.run_id == runs.c.run_id).scalar_subquery()
    query = select(runs.c.run_id, runs.c.namespace, runs.c.ended_at, of_run, func.coalesce(to_thin, 0))
    rows = connection.execute(query.where(*chosen))
    return [EndedRun(run_id, namespace, ended, count, left == 0) for run_id, namespace, ended, count, left in rows]


def _has_ended(connection: Connection, run_id: str) -> bool:
    """Whether the run has not been resumed since the plan was made."""
    ended = and_(runs.c.run_id == run_id, has_finished())
    return connection.execute(select(runs.c.run_id).where(ended)).first() is not None


def _key(run_id: str) -> Any:
    return select(run_keys.c.run_key).where(run_keys.c.run_id == run_id).scalar_subquery()


def _remove_metric(connection: Connection, run_id: str, metric_id: int) -> None:
    # `latest` at last: it says which metrics an interrupted removal has left.
    connection.execute(delete(points).where(points.c.run_key == _key(run_id), points.c.metric_id == metric_id))
    for table in (named, rollups, latest):
        connection.execute(delete(table).where(table.c.run_id == run_id, table.c.metric_id == metric_id))


def _remove(connection: Connection, run_id: str) -> None:
    connection.execute(delete(points).where(points.c.run_key == _key(run_id)))
    for table in schema.metadata.sorted_tables:
        if "run_id" in table.c and table is not runs:
            connection.execute(delete(table).where(table.c.run_id == run_id))
    connection.execute(delete(runs).where(runs.c.run_id == run_id))


def _thin(connection: Connection, run_id: str, metric_id: int) -> None:
    """Keeps the last point of each bucket that is rolled up: curves keep their shape, and rollups the extremes."""
    bucket: Any = points.c.step // literal_column(str(FINE))
    of_latest = and_(latest.c.run_id == run_id, latest.c.metric_id == metric_id)
    rolled_to = select(latest.c.rolled_to).where(of_latest).scalar_subquery()
    last = exists().where(
        rollups.c.run_id == run_id,
        rollups.c.metric_id == metric_id,
        rollups.c.width == FINE,
        rollups.c.bucket == bucket,
        rollups.c.step_to == points.c.step,
    )
    newer = points.alias("newer")
    same_step = and_(
        newer.c.run_key == points.c.run_key, newer.c.metric_id == points.c.metric_id, newer.c.step == points.c.step
    )
    overtaken = exists().where(same_step, newer.c.attempt > points.c.attempt)
    here = and_(points.c.run_key == _key(run_id), points.c.metric_id == metric_id)
    connection.execute(delete(points).where(here, points.c.step < rolled_to, or_(not_(last), overtaken)))
    connection.execute(update(latest).where(of_latest).values(thinned_to=latest.c.rolled_to))
