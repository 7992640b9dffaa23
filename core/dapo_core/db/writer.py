"""Writes the metadata store. Every write is idempotent."""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, func, not_, or_, select, update

from dapo_core.db import dialects, rollups, schema
from dapo_core.db.points import numbered
from dapo_core.errors import StoreError
from dapo_core.run.annotations import AnnotationRow
from dapo_core.run.entries import RunState
from dapo_core.run.store_rows import (
    AlertRow,
    AttemptRow,
    EvaluationRow,
    EventRow,
    Point,
    Receipt,
    RunRow,
    WriteBatch,
)

Rows = Sequence[Mapping[str, Any]]
Wins = Callable[[Table, Any], ColumnElement[bool]]
_DELIVERED = select(schema.deliveries.c.seq).where(
    schema.deliveries.c.run_id == bindparam("run"), schema.deliveries.c.spool == bindparam("spool_id")
)
_LATEST = ("run_id", "metric_id", "step", "attempt", "ts", "value", "flag")
_POINT = ("run_key", *_LATEST[1:])
# Parameters that a statement may have; the sender splits a batch that is rejected.
MAX_NAMES = 30_000
# Columns that keep their first value.
_FIRST = frozenset({"started_at"})


def open_writer(url: str) -> "MetadataWriter":
    """A writer for the database at `url`. It connects at its first write. Raises StoreError for an unusable URL."""
    return MetadataWriter(url)


class MetadataWriter:
    """Every method is one transaction, is thread-safe and raises StoreError (RejectedError if the row itself is at
    fault)."""

    def __init__(self, url: str) -> None:
        self._engine = dialects.open_engine(url)
        self._metric_ids: dict[str, int] = {}
        self._finalizer = weakref.finalize(self, self._engine.dispose)

    def close(self) -> None:
        """Closes its connections. The writer opens new ones if it is used again."""
        self._engine.dispose()

    def probe(self) -> None:
        """Raises StoreError if trainers cannot write now, although the database may be readable."""
        try:
            with self._transaction("a trial write") as connection:
                dialects.probe_writing(connection)
        except StoreError as error:
            # A login that may only write runs cannot try it.
            if not dialects.is_forbidden(error.__cause__ or error):
                raise

    def create_run(self, run: RunRow) -> None:
        """Adds a run, unless it exists. Raises ForeignRunError if another namespace has one of this ID."""
        namespace = select(schema.runs.c.namespace).where(schema.runs.c.run_id == run.run_id)
        with self._transaction("the write of a run") as connection:
            _upsert(connection, schema.runs, [asdict(run)], wins=None)
            if connection.execute(namespace).scalar() != run.namespace:
                raise dialects.ForeignRunError(run.run_id, run.namespace)

    def update_run(self, run_id: str, **changes: Any) -> None:
        """Sets columns of a run, such as `config`, `total_steps`, `tags` or `owner`."""
        with self._transaction("the write of a run") as connection:
            connection.execute(update(schema.runs).where(schema.runs.c.run_id == run_id).values(**changes))

    def update_run_state(
        self,
        run_id: str,
        state: RunState,
        *,
        reason: str | None = None,
        message: str | None = None,
        started_at: float | None = None,
        ended_at: float | None = None,
    ) -> None:
        """Sets a run's state and why. A `started_at` that is set is kept; `ended_at` is overwritten."""
        changes: dict[str, Any] = {"state": state, "reason": reason, "message": message, "ended_at": ended_at}
        runs = schema.runs
        with self._transaction("the write of a run's state") as connection:
            connection.execute(update(runs).where(runs.c.run_id == run_id).values(**changes))
            if started_at is not None:
                first = update(runs).where(runs.c.run_id == run_id, runs.c.started_at.is_(None))
                connection.execute(first.values(started_at=started_at))

    def start_attempt(self, attempt: AttemptRow) -> None:
        """Adds an attempt, before it has any process, unless it exists."""
        with self._transaction("the write of an attempt") as connection:
            _upsert(connection, schema.attempts, [asdict(attempt)], wins=None)

    def attempt_resumed(self, run_id: str, attempt: int, step_from: int) -> None:
        """Sets the step of the checkpoint that the attempt has restored (0: it starts from the model)."""
        self._change_attempt(run_id, attempt, {"step_from": step_from})

    def end_attempt(
        self,
        run_id: str,
        attempt: int,
        *,
        reason: str,
        message: str = "",
        exit_code: int | None = None,
        counted: bool | None = None,
        ended_at: float | None = None,
    ) -> None:
        """Sets how an attempt ended. Its `step_to` follows from its points."""
        ended = time.time() if ended_at is None else ended_at
        changes = {"reason": reason, "message": message, "exit_code": exit_code, "counted": counted, "ended_at": ended}
        self._change_attempt(run_id, attempt, changes)

    def _change_attempt(self, run_id: str, attempt: int, changes: Mapping[str, Any]) -> None:
        table = schema.attempts
        with self._transaction("the write of an attempt") as connection:
            same = and_(table.c.run_id == run_id, table.c.attempt == attempt)
            connection.execute(update(table).where(same).values(**changes))

    def write_events(self, run_id: str, events: Sequence[EventRow]) -> None:
        """Adds events, except those whose `dedup_key` exists."""
        self.write(run_id, WriteBatch(events=events))

    def add_evaluations(self, rows: Sequence[EvaluationRow]) -> None:
        """Adds the results of `dapo evaluate`: all rows or none. Raises RejectedError if one exists."""
        with self._transaction("the write of an evaluation") as connection:
            connection.execute(schema.evaluations.insert(), [asdict(row) for row in rows])

    def raise_alert(self, alert: AlertRow) -> None:
        """Adds an alert of a guard that holds, or updates the open one of this rule."""
        table = schema.alerts
        with self._transaction("the write of an alert") as connection:
            dialects.lock_run(connection, alert.run_id)
            changes = {"message": alert.message, "action": alert.action}
            newer = update(table).where(_open(alert.run_id, alert.rule))
            seen = dialects.greatest(connection, table.c.last_seen, alert.last_seen)
            if connection.execute(newer.values(last_seen=seen, **changes)).rowcount == 0:
                _upsert(connection, table, [asdict(alert)], wins=None)

    def clear_alert(self, run_id: str, rule: str, at: float) -> None:
        """Clears the open alert of a guard that no longer holds, if there is one."""
        with self._transaction("the write of an alert") as connection:
            connection.execute(update(schema.alerts).where(_open(run_id, rule)).values(cleared_at=at, last_seen=at))

    def acknowledge(self, run_id: str, rule: str, first_seen: float, *, by: str, at: float | None = None) -> bool:
        """Sets who has seen the alert; the first one is kept. Returns whether there is such an alert."""
        table = schema.alerts
        same = and_(table.c.run_id == run_id, table.c.rule == rule, table.c.first_seen == first_seen)
        change = (
            update(table)
            .where(same)
            .values(
                acknowledged_by=func.coalesce(table.c.acknowledged_by, by),
                acknowledged_at=func.coalesce(table.c.acknowledged_at, time.time() if at is None else at),
            )
        )
        with self._transaction("the acknowledgement of an alert") as connection:
            return connection.execute(change).rowcount > 0

    def annotate(self, rows: Sequence[AnnotationRow]) -> None:
        """Records what people say of runs; of the same annotation the newest row stays."""
        with self._transaction("the write of an annotation") as connection:
            _upsert(connection, schema.annotations, [asdict(row) for row in rows], _said_later)

    def write(self, run_id: str, batch: WriteBatch, receipt: Receipt | None = None) -> None:
        """Writes all of `batch` or nothing, and in the same transaction how far the spool was delivered.

        Raises StoreBehindError if the store lacks records that the spool delivered before.
        """
        with self._transaction("the write of a batch") as connection:
            dialects.lock_run(connection, run_id)
            if receipt is not None:
                _sign(connection, run_id, receipt)
            if batch.points:
                self._write_points(connection, run_id, batch.points)
            _upsert(connection, schema.events, [asdict(row) for row in batch.events], wins=None)
            _upsert(connection, schema.checkpoints, [asdict(row) for row in batch.checkpoints], _newer_state)
            _upsert(connection, schema.samples, [asdict(row) for row in batch.samples], _newer)

    def _write_points(self, connection: Connection, run_id: str, points: Sequence[Point]) -> None:
        if len(names := {point.metric for point in points}) > MAX_NAMES:
            raise dialects.RejectedError(f"A batch has points of {len(names)} metrics, more than {MAX_NAMES}.")
        ids = self._ids(connection, names)
        # A statement must not touch a row twice: the last one of each key, in the order of the table's keys.
        run_key, stored = numbered(connection, run_id)
        last = {
            (ids[metric], step, attempt): (run_key, ids[metric], step, attempt, ts, value, flag)
            for metric, step, attempt, ts, value, flag in points
        }
        rows = [last[key] for key in sorted(last)]
        _put(connection, schema.curve_points, _POINT, rows, _newer)
        newest = {row[1]: (run_id, *row[1:]) for row in sorted(rows, key=itemgetter(3))}
        _put(connection, schema.latest, _LATEST, list(newest.values()), _further)
        _upsert(connection, schema.attempts, _reached(run_id, {row[2:5] for row in rows}), _behind)
        touched: dict[int, set[int]] = {}
        for row in rows:
            touched.setdefault(row[1], set()).add(row[2])
        rollups.maintain(connection, run_id, touched, stored)

    def _ids(self, connection: Connection, names: set[str]) -> dict[str, int]:
        """IDs of metric names. Names are never removed, so IDs are cached."""
        unknown = names - self._metric_ids.keys()
        if unknown:
            # Read before this transaction wrote: these are committed and may be cached.
            self._metric_ids |= _metric_ids(connection, unknown)
            unknown -= self._metric_ids.keys()
        if not unknown:
            return self._metric_ids
        missing = [{"name": name} for name in sorted(unknown)]
        connection.execute(dialects.insert(connection, schema.metric_names).on_conflict_do_nothing(), missing)
        known = self._metric_ids | _metric_ids(connection, unknown)
        if lost := unknown - known.keys():
            raise StoreError(f"The metadata database did not take the metric {min(lost)!r}. Retrying.")
        return known

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Connection]:
        try:
            with dialects.transaction(self._engine, doing) as connection:
                yield connection
        except (TypeError, ValueError, OverflowError) as error:
            raise dialects.RejectedError(f"The metadata database rejected {doing}: {error}.") from error


def _upsert(connection: Connection, table: Table, rows: Rows, wins: Wins | None) -> None:
    """As `_put`, for rows as mappings."""
    if rows:
        names = tuple(rows[0])
        _put(connection, table, names, _once(rows, names, dialects.key_of(table)), wins)


def _put(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]], wins: Wins | None
) -> None:
    """Inserts `rows`, whose keys are unique. A row that exists is kept, or replaced if `wins(table, new)`."""
    dialect = connection.dialect.name
    connection.execute(_statement(dialect, table, names, wins), dialects.parameters(dialect, names, rows))


@cache
def _statement(dialect: str, table: Table, names: tuple[str, ...], wins: Wins | None) -> dialects.Insert:
    key = dialects.key_of(table)
    statement = dialects.insert_rows(dialect, table, names)
    if wins is None:
        return statement.on_conflict_do_nothing(index_elements=key)
    new = statement.excluded
    values = {name: new[name] for name in names if name not in key and name not in _FIRST}
    return statement.on_conflict_do_update(index_elements=key, set_=values, where=wins(table, new))


def _once(rows: Rows, names: Sequence[str], key: Iterable[str]) -> list[tuple[Any, ...]]:
    """The last row of each key, in the order of the keys: a statement must not touch a row twice, and two that touch
    the same rows in different orders could deadlock."""
    of_row, whole = itemgetter(*key), itemgetter(*names)
    last = {of_row(row): whole(row) for row in rows}
    return [last[value] for value in sorted(last)]


def _reached(run_id: str, seen: Iterable[tuple[int, int, float]]) -> Rows:
    """The last step of each attempt, from (step, attempt, time). An attempt that is missing, as in a database that was
    restored from an older backup, is added by its points."""
    ends: dict[int, tuple[int, float]] = {}
    for step, attempt, ts in seen:
        end, began = ends.get(attempt, (step, ts))
        ends[attempt] = (max(end, step), min(began, ts))
    return [
        {"run_id": run_id, "attempt": attempt, "started_at": began, "step_to": end}
        for attempt, (end, began) in ends.items()
    ]


def _sign(connection: Connection, run_id: str, receipt: Receipt) -> None:
    table = schema.deliveries
    known = connection.execute(_DELIVERED, {"run": run_id, "spool_id": receipt.spool}).scalar() or 0
    if known < receipt.after:
        raise dialects.StoreBehindError(known, receipt.after)
    if known < receipt.upto:
        row = {"run_id": run_id, "spool": receipt.spool, "seq": receipt.upto}
        _upsert(connection, table, [row], _later)


def _open(run_id: str, rule: str) -> ColumnElement[bool]:
    table = schema.alerts
    return and_(table.c.run_id == run_id, table.c.rule == rule, table.c.cleared_at.is_(None))


def _metric_ids(connection: Connection, names: set[str]) -> dict[str, int]:
    table = schema.metric_names
    rows = connection.execute(select(table.c.name, table.c.metric_id).where(table.c.name.in_(names)))
    return {name: number for name, number in rows}


def _newer(table: Table, new: Any) -> ColumnElement[bool]:
    return table.c.ts < new.ts  # type: ignore[no-any-return]


def _said_later(table: Table, new: Any) -> ColumnElement[bool]:
    return table.c["at"] <= new["at"]  # type: ignore[no-any-return]


def _later(table: Table, new: Any) -> ColumnElement[bool]:
    return table.c.seq < new.seq  # type: ignore[no-any-return]


def _behind(table: Table, new: Any) -> ColumnElement[bool]:
    return or_(table.c.step_to.is_(None), table.c.step_to < new.step_to)


def _newer_state(table: Table, new: Any) -> ColumnElement[bool]:
    """Whether a checkpoint's new state replaces the old one. A later attempt's always does: its node's clock may be
    behind. An earlier attempt's does only if it says what the object store has, not what that attempt tried."""
    old = table.c
    is_of_attempt = or_(new.state == "uploading", new.state == "failed")  # SQLite takes no IN for several rows at once
    is_of_store = or_(new.attempt == 0, new.attempt >= old.attempt, not_(is_of_attempt))
    return or_(new.attempt > old.attempt, and_(old.updated_at <= new.updated_at, is_of_store))


def _further(table: Table, new: Any) -> ColumnElement[bool]:
    """The value of a later attempt is the last one, even if an earlier attempt reached a higher step."""
    old = table.c
    in_attempt = or_(old.step < new.step, and_(old.step == new.step, old.ts < new.ts))
    return or_(old.attempt < new.attempt, and_(old.attempt == new.attempt, in_attempt))
