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
from dapo_core.db.rollups import FINE
from dapo_core.run.entries import ENDED_STATES

DAY: Final = 86_400.0
# A suspended run is to be resumed.
_FINISHED: Final = sorted(ENDED_STATES - {"Suspended"})
runs, points, latest, rollups = schema.runs, schema.points, schema.latest, schema.rollups


@dataclass(frozen=True)
class Keep:
    """Retention limits; None: no limit. Days count from the end of a run; `most_points` is for the whole store."""

    whole_days: float | None = None
    thinned_days: float | None = None
    most_points: int | None = None
    run_id: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class Ended:
    """An ended run, and how many points it has."""

    run_id: str
    namespace: str
    ended_at: float
    points: int
    is_thinned: bool


@dataclass(frozen=True)
class PrunePlan:
    """What `apply` does. `bytes_a_point` is the size of this store, indexes included, divided by its points."""

    thin: Sequence[Ended]
    remove: Sequence[Ended]
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
            total = None if keep.most_points is not None else dialects.estimated_rows(connection, points)
            if total is None:
                total = int(connection.execute(select(func.count()).select_from(points)).scalar_one())
            ended = _ended(connection, keep)
            size = dialects.size(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, "a query") from error
    finally:
        engine.dispose()
    return choose(ended, keep, now, total, size / total if total else 0.0)


def choose(ended: Sequence[Ended], keep: Keep, now: float, total: int, bytes_a_point: float) -> PrunePlan:
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


def _older(run: Ended, days: float | None, now: float) -> bool:
    return days is not None and now - run.ended_at > days * DAY


def _ended(connection: Connection, keep: Keep) -> list[Ended]:
    chosen: list[ColumnElement[bool]] = [runs.c.ended_at.is_not(None), runs.c.state.in_(_FINISHED)]
    if keep.run_id is not None:
        chosen.append(runs.c.run_id == keep.run_id)
    if keep.namespace is not None:
        chosen.append(runs.c.namespace == keep.namespace)
    # By the key of the points, for each run: grouping by run would read the points of all runs.
    of_run = select(func.count()).where(points.c.run_id == runs.c.run_id).scalar_subquery()
    # A run is thinned once nothing that is rolled up is left to thin, also if it was resumed since.
    left = func.max(latest.c.rolled_to - latest.c.thinned_to)
    to_thin = select(left).where(latest.c.run_id == runs.c.run_id).scalar_subquery()
    query = select(runs.c.run_id, runs.c.namespace, runs.c.ended_at, of_run, func.coalesce(to_thin, 0))
    rows = connection.execute(query.where(*chosen))
    return [Ended(run_id, namespace, ended, count, left == 0) for run_id, namespace, ended, count, left in rows]


def _has_ended(connection: Connection, run_id: str) -> bool:
    """Whether the run has not been resumed since the plan was made."""
    ended = and_(runs.c.run_id == run_id, runs.c.ended_at.is_not(None), runs.c.state.in_(_FINISHED))
    return connection.execute(select(runs.c.run_id).where(ended)).first() is not None


def _remove_metric(connection: Connection, run_id: str, metric_id: int) -> None:
    # `latest` at last: it says which metrics an interrupted removal has left.
    for table in (points, rollups, latest):
        connection.execute(delete(table).where(table.c.run_id == run_id, table.c.metric_id == metric_id))


def _remove(connection: Connection, run_id: str) -> None:
    for table in schema.metadata.sorted_tables:
        if "run_id" in table.c and table is not runs:
            connection.execute(delete(table).where(table.c.run_id == run_id))
    connection.execute(delete(runs).where(runs.c.run_id == run_id))


def _thin(connection: Connection, run_id: str, metric_id: int) -> None:
    """Keeps the last point of each bucket that is rolled up: curves keep their shape, and rollups the extremes."""
    bucket: Any = points.c.step // literal_column(str(FINE))
    of_metric = and_(latest.c.run_id == points.c.run_id, latest.c.metric_id == points.c.metric_id)
    rolled_to = select(latest.c.rolled_to).where(of_metric).scalar_subquery()
    last = exists().where(
        rollups.c.run_id == points.c.run_id,
        rollups.c.metric_id == points.c.metric_id,
        rollups.c.width == FINE,
        rollups.c.bucket == bucket,
        rollups.c.step_to == points.c.step,
    )
    newer = points.alias("newer")
    same_step = and_(
        newer.c.run_id == points.c.run_id, newer.c.metric_id == points.c.metric_id, newer.c.step == points.c.step
    )
    overtaken = exists().where(same_step, newer.c.attempt > points.c.attempt)
    here = and_(points.c.run_id == run_id, points.c.metric_id == metric_id)
    connection.execute(delete(points).where(here, points.c.step < rolled_to, or_(not_(last), overtaken)))
    of_latest = and_(latest.c.run_id == run_id, latest.c.metric_id == metric_id)
    connection.execute(update(latest).where(of_latest).values(thinned_to=latest.c.rolled_to))
