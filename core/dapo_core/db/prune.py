"""Retention: runs that ended long ago are thinned out to one point in 16 steps and later removed, as are the oldest
while the store has too many points. Runs that have not ended, or are suspended, are never changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, exists, func, literal_column, not_, or_, select, update
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
class Plan:
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


def plan(url: str, keep: Keep, now: float) -> Plan:
    """What `keep` would thin and remove now. Raises StoreError."""
    engine = dialects.open_engine(url, read_only=True)
    try:
        with engine.connect() as connection:
            total = int(connection.execute(select(func.count()).select_from(points)).scalar_one())
            ended = _ended(connection, keep)
            size = dialects.size(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, "a query") from error
    finally:
        engine.dispose()
    return choose(ended, keep, now, total, size / total if total else 0.0)


def choose(ended: Sequence[Ended], keep: Keep, now: float, total: int, bytes_a_point: float) -> Plan:
    """The plan: remove what is too old, then the oldest while there are too many points; thin out the rest. Pure."""
    oldest_first = sorted(ended, key=lambda run: run.ended_at)
    remove = [run for run in oldest_first if _older(run, keep.thinned_days, now)]
    thin = [
        run for run in oldest_first if run not in remove and not run.is_thinned and _older(run, keep.whole_days, now)
    ]
    if keep.most_points is not None:
        left = Plan(thin, remove, total, bytes_a_point)
        for run in oldest_first:
            if total - left.points_gone <= keep.most_points:
                break
            if run not in remove:
                remove = [*remove, run]
                thin = [other for other in thin if other != run]
                left = Plan(thin, remove, total, bytes_a_point)
    return Plan(thin, remove, total, bytes_a_point)


def apply(url: str, plan: Plan) -> None:
    """Carries out `plan`, one transaction per run, so that it may be interrupted and repeated. Raises StoreError."""
    engine = dialects.open_engine(url)
    try:
        for work, chosen in ((_remove, plan.remove), (_thin, plan.thin)):
            for run in chosen:
                with engine.begin() as connection:
                    dialects.lock_run(connection, run.run_id)
                    if _has_ended(connection, run.run_id):
                        work(connection, run.run_id)
    except SQLAlchemyError as error:
        raise dialects.translate(error, "the removal of old runs") from error
    finally:
        engine.dispose()


def _older(run: Ended, days: float | None, now: float) -> bool:
    return days is not None and now - run.ended_at > days * DAY


def _ended(connection: Connection, keep: Keep) -> list[Ended]:
    counted = select(points.c.run_id, func.count().label("points")).group_by(points.c.run_id).subquery("counted")
    thinned = select(latest.c.run_id, func.max(latest.c.thinned_to).label("to")).group_by(latest.c.run_id).subquery()
    query = (
        select(
            runs.c.run_id,
            runs.c.namespace,
            runs.c.ended_at,
            func.coalesce(counted.c.points, 0),
            func.coalesce(thinned.c.to, 0),
        )
        .outerjoin(counted, counted.c.run_id == runs.c.run_id)
        .outerjoin(thinned, thinned.c.run_id == runs.c.run_id)
        .where(runs.c.ended_at.is_not(None), runs.c.state.in_(_FINISHED))
    )
    if keep.run_id is not None:
        query = query.where(runs.c.run_id == keep.run_id)
    if keep.namespace is not None:
        query = query.where(runs.c.namespace == keep.namespace)
    rows = connection.execute(query)
    return [Ended(run_id, namespace, ended, count, to > 0) for run_id, namespace, ended, count, to in rows]


def _has_ended(connection: Connection, run_id: str) -> bool:
    """Whether the run has not been resumed since the plan was made."""
    ended = and_(runs.c.run_id == run_id, runs.c.ended_at.is_not(None), runs.c.state.in_(_FINISHED))
    return connection.execute(select(runs.c.run_id).where(ended)).first() is not None


def _remove(connection: Connection, run_id: str) -> None:
    for table in schema.metadata.sorted_tables:
        if "run_id" in table.c and table is not runs:
            connection.execute(delete(table).where(table.c.run_id == run_id))
    connection.execute(delete(runs).where(runs.c.run_id == run_id))


def _thin(connection: Connection, run_id: str) -> None:
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
    surplus = and_(points.c.run_id == run_id, points.c.step < rolled_to, or_(not_(last), overtaken))
    connection.execute(delete(points).where(surplus))
    connection.execute(update(latest).where(latest.c.run_id == run_id).values(thinned_to=latest.c.rolled_to))
