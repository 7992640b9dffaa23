"""Reads the metadata store, for `dapo runs`, `dapo show`, the dashboard and the operator."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, desc, exists, select
from sqlalchemy.exc import SQLAlchemyError

from dapo_core.db import dialects, schema
from dapo_core.db.rows import AttemptRow, CheckpointRow, EventRow, Flag, RunRow, SamplesRow, join_value


@dataclass(frozen=True)
class CurvePoint:
    """One step of a curve. `value` is None where it was not finite, and `flag` says how."""

    step: int
    attempt: int
    ts: float
    value: float | None
    flag: Flag | None

    @property
    def number(self) -> float:
        """The value, with NaN and infinities as such."""
        return join_value(self.value, self.flag)


@dataclass(frozen=True)
class RunSummary:
    """One line of a list of runs: the run, how far its newest attempt came and its last values."""

    run: RunRow
    attempts: int
    step: int | None
    values: Mapping[str, CurvePoint]


def open_reader(url: str) -> "MetadataReader":
    """A reader of the database at `url`. Raises StoreError when there is none."""
    return MetadataReader(url)


class MetadataReader:
    """Never writes. Every method raises StoreError when the database can not be read, and may be called from any
    thread."""

    def __init__(self, url: str) -> None:
        self._engine = dialects.open_engine(url, read_only=True)

    def runs(self, namespace: str | None = None, limit: int | None = None) -> list[RunRow]:
        """Runs, newest first, of one namespace or of all."""
        query = select(schema.runs).order_by(desc(schema.runs.c.created_at), schema.runs.c.run_id).limit(limit)
        if namespace is not None:
            query = query.where(schema.runs.c.namespace == namespace)
        return [RunRow(**row) for row in self._rows(query)]

    def run(self, name: str) -> RunRow | None:
        """The run of this id, else the newest run of the job of this name."""
        table = schema.runs
        query = select(table).where((table.c.run_id == name) | (table.c.name == name))
        rows = self._rows(query.order_by(desc(table.c.run_id == name), desc(table.c.created_at)).limit(1))
        return RunRow(**rows[0]) if rows else None

    def summaries(
        self, metrics: Sequence[str] = (), namespace: str | None = None, limit: int | None = None
    ) -> list[RunSummary]:
        """Runs, newest first, each with how far it came and the last values of `metrics`: three queries for all."""
        runs = self.runs(namespace, limit)
        ids = [run.run_id for run in runs]
        attempts: dict[str, list[AttemptRow]] = {}
        for row in self._rows(select(schema.attempts).where(schema.attempts.c.run_id.in_(ids))):
            attempts.setdefault(row["run_id"], []).append(AttemptRow(**row))
        values = self._latest(ids, metrics)
        return [
            RunSummary(run, len(lives := attempts.get(run.run_id, [])), _step(lives), values.get(run.run_id, {}))
            for run in runs
        ]

    def attempts(self, run_id: str) -> list[AttemptRow]:
        """The run's attempts, oldest first."""
        table = schema.attempts
        return [
            AttemptRow(**row)
            for row in self._rows(select(table).where(table.c.run_id == run_id).order_by(table.c.attempt))
        ]

    def metrics(self, run_id: str) -> list[str]:
        """Names of the metrics the run has, by name."""
        return sorted(self.latest(run_id))

    def latest(self, run_id: str) -> dict[str, CurvePoint]:
        """The last value of each metric: the newest attempt's, at its highest step."""
        return self._latest([run_id], None).get(run_id, {})

    def curve(self, run_id: str, metric: str, since_step: int | None = None) -> list[CurvePoint]:
        """The metric by step, each step as the highest attempt that reached it saw it; steps after `since_step`."""
        old, newer, names = schema.points, schema.points.alias(), schema.metric_names
        metric_id = select(names.c.metric_id).where(names.c.name == metric).scalar_subquery()
        same_step = and_(
            newer.c.run_id == old.c.run_id, newer.c.metric_id == old.c.metric_id, newer.c.step == old.c.step
        )
        overtaken = exists().where(same_step, newer.c.attempt > old.c.attempt)
        query = select(old.c.step, old.c.attempt, old.c.ts, old.c.value, old.c.flag).where(
            old.c.run_id == run_id, old.c.metric_id == metric_id, ~overtaken
        )
        if since_step is not None:
            query = query.where(old.c.step > since_step)
        return [CurvePoint(**row) for row in self._rows(query.order_by(old.c.step))]

    def events(self, run_id: str, limit: int | None = None) -> list[EventRow]:
        """The run's events, newest first."""
        table = schema.events
        query = select(table).where(table.c.run_id == run_id).order_by(desc(table.c.ts), desc(table.c.dedup_key))
        return [EventRow(**row) for row in self._rows(query.limit(limit))]

    def checkpoints(self, run_id: str) -> list[CheckpointRow]:
        """The run's checkpoints in every state, highest step first."""
        table = schema.checkpoints
        query = select(table).where(table.c.run_id == run_id).order_by(desc(table.c.step))
        return [CheckpointRow(**row) for row in self._rows(query)]

    def samples(self, run_id: str) -> list[SamplesRow]:
        """Where the run's samples lie, highest step and attempt first."""
        table = schema.samples
        query = select(table).where(table.c.run_id == run_id).order_by(desc(table.c.step), desc(table.c.attempt))
        return [SamplesRow(**row) for row in self._rows(query)]

    def _latest(self, run_ids: Sequence[str], metrics: Sequence[str] | None) -> dict[str, dict[str, CurvePoint]]:
        table, names = schema.latest, schema.metric_names
        columns = (table.c.step, table.c.attempt, table.c.ts, table.c.value, table.c.flag)
        query = select(table.c.run_id, names.c.name, *columns).join(names, names.c.metric_id == table.c.metric_id)
        query = query.where(table.c.run_id.in_(run_ids))
        if metrics is not None:
            query = query.where(names.c.name.in_(metrics))
        found: dict[str, dict[str, CurvePoint]] = {}
        for row in self._rows(query):
            run_id, name = row.pop("run_id"), row.pop("name")
            found.setdefault(run_id, {})[name] = CurvePoint(**row)
        return found

    def _rows(self, query: Select[Any]) -> list[dict[str, Any]]:
        with self._connection() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise dialects.translate(error, "a query") from error


def _step(attempts: Sequence[AttemptRow]) -> int | None:
    """The last step of the newest attempt, which may be behind an earlier one's; before its first, what it began at."""
    if not attempts:
        return None
    newest = max(attempts, key=lambda attempt: attempt.attempt)
    return newest.step_to if newest.step_to is not None else newest.step_from
