"""Moves points of earlier versions from `points` to `curve_points`, where they take half the space.

Only of runs that have ended: the trainer of a run that goes on may be of an earlier version, which looks at `points`
alone. Each batch is a transaction, so it may be interrupted and repeated, and readers see each point at every moment.
"""

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, literal, select, text, tuple_
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dapo_core.db import dialects, rollups, schema
from dapo_core.db.points import first_named, numbered
from dapo_core.run.entries import ENDED_STATES

BATCH: Final = 20_000
# Whoever writes waits behind us for the lock that returns the disk's space.
_LOCK_MS: Final = 500
# A suspended run is to be resumed.
_FINISHED: Final = sorted(ENDED_STATES - {"Suspended"})
_COPIED: Final = ("metric_id", "step", "attempt", "ts", "value", "flag")

runs, named, points = schema.runs, schema.points, schema.curve_points


def has_finished() -> ColumnElement[bool]:
    """Whether a row of `runs` is of a run that has ended and is not to be resumed."""
    return and_(runs.c.ended_at.is_not(None), runs.c.state.in_(_FINISHED))


def waiting(url: str) -> tuple[int, int]:
    """How many runs have points to move, and how many have points that wait for the run's end. Raises StoreError."""
    engine = dialects.open_engine(url, read_only=True)
    try:
        with engine.connect() as connection:
            query = select(has_finished()).where(first_named(runs.c.run_id).is_not(None))
            are_ended = [bool(ended) for ended in connection.execute(query).scalars()]
        return are_ended.count(True), are_ended.count(False)
    except SQLAlchemyError as error:
        raise dialects.translate(error, "a query") from error
    finally:
        engine.dispose()


def convert(url: str, batch: int = BATCH) -> Iterator[tuple[str, int]]:
    """Moves the points of all runs that have ended, and yields (run ID, points moved) after each run. Raises
    StoreError."""
    engine = dialects.open_engine(url)
    try:
        with engine.connect() as connection:
            query = select(runs.c.run_id).where(has_finished(), first_named(runs.c.run_id).is_not(None))
            found = list(connection.execute(query.order_by(runs.c.run_id)).scalars())
        for run_id in found:
            yield run_id, convert_run(engine, run_id, batch)
        if found:
            _return_space(engine)
    except SQLAlchemyError as error:
        raise dialects.translate(error, "the conversion of points") from error
    finally:
        engine.dispose()


def convert_run(engine: Engine, run_id: str, batch: int = BATCH) -> int:
    """Moves the points of a run, unless it goes on; returns how many were moved."""
    is_mixed, moved = None, 0
    while True:
        with engine.begin() as connection:
            dialects.lock_run(connection, run_id)
            if is_mixed is None:
                # Points in both tables: a conversion was interrupted, or another version went on with the run and made
                # its rollups of the points that it saw.
                key = select(schema.run_keys.c.run_key).where(schema.run_keys.c.run_id == run_id)
                is_mixed = connection.execute(key).first() is not None
            ended = select(runs.c.run_id).where(runs.c.run_id == run_id, has_finished())
            if connection.execute(ended).first() is None:
                return moved
            count = _move(connection, run_id, batch, is_mixed)
        if not count:
            return moved
        moved += count


def _move(connection: Connection, run_id: str, batch: int, is_mixed: bool) -> int:
    """Moves the first points of a run, in the order of their key."""
    key = named.primary_key.columns
    first = select(*key).where(named.c.run_id == run_id).order_by(*key)
    last = connection.execute(first.offset(batch - 1).limit(1)).first()
    chosen = named.c.run_id == run_id
    if last is not None:
        chosen = and_(chosen, tuple_(*list(key)[1:]) <= tuple_(*last[1:]))
    run_key, _ = numbered(connection, run_id)
    touched: dict[int, set[int]] = {}
    if is_mixed:
        for metric_id, step in connection.execute(select(named.c.metric_id, named.c.step).where(chosen)):
            touched.setdefault(metric_id, set()).add(step)
    source = select(literal(run_key).label("run_key"), *(named.c[name] for name in _COPIED)).where(chosen)
    copied = dialects.insert(connection, points).from_select(["run_key", *_COPIED], source)
    new: Any = copied.excluded
    changes = {name: new[name] for name in ("ts", "value", "flag")}
    keys = dialects.key_of(points)
    connection.execute(copied.on_conflict_do_update(index_elements=keys, set_=changes, where=points.c.ts < new.ts))
    count = connection.execute(delete(named).where(chosen)).rowcount
    if touched:
        rollups.maintain(connection, run_id, touched, numbered(connection, run_id)[1])
    return count


def _return_space(engine: Engine) -> None:
    """Gives the disk space of the old table back once it is empty; until then the server reuses it."""
    if engine.dialect.name != "postgresql":
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM points"))
    try:
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
            connection.execute(text("LOCK TABLE points IN ACCESS EXCLUSIVE MODE"))
            if connection.execute(select(literal(1)).select_from(named).limit(1)).first() is None:
                connection.execute(text("TRUNCATE points"))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # in use; the next conversion does it
            raise
