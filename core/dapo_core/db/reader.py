"""Reads the metadata store, for `dapo runs`, `dapo show`, the dashboard and the operator."""

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Select, and_, desc, func, or_, select, text
from sqlalchemy.exc import SQLAlchemyError

from dapo_core.db import curves, dialects, overwritten, roles, run_changes, run_table, schema
from dapo_core.db.dialects import AmbiguousRunError
from dapo_core.naming import RUN_ID
from dapo_core.run.annotations import MAX_NOTE, AnnotationRow
from dapo_core.run.store_rows import (
    AlertRow,
    AttemptRow,
    Bucket,
    CheckpointRow,
    CurvePart,
    CurvePoint,
    EvaluationRow,
    EventRow,
    RunMark,
    RunProgress,
    RunRow,
    RunSummary,
    RunTableRow,
    SamplesRow,
)
from dapo_core.run.validations import ValidationResult

# Steps of the curves that come with a run's progress.
FIRST_STEPS = 30
LAST_STEPS = 100


def open_reader(url: str) -> "MetadataReader":
    """A reader of the database at `url`. Raises StoreError if there is none."""
    return MetadataReader(url)


class MetadataReader:
    """Never writes. Every method is thread-safe and raises StoreError if the database cannot be read."""

    def __init__(self, url: str) -> None:
        self._engine = dialects.open_engine(url, read_only=True)
        # Also for callers that drop the reader without closing it.
        self._finalizer = weakref.finalize(self, self._engine.dispose)

    def close(self) -> None:
        """Closes its connections. The reader opens new ones if it is used again."""
        self._engine.dispose()

    def only_namespace(self) -> str | None:
        """The namespace to which the login is bound (`dapo_core.db.roles`); None if it sees all of them."""
        with self._connection() as connection:
            if not dialects.is_postgres(connection) or not roles.are_set_up(connection):
                return None
            scope: str | None = connection.execute(text("SELECT dapo_scope()")).scalar()
            return None if scope == "*" else scope

    def version(self) -> object:
        """Of all that is stored: equal if nothing was committed in between. A commit while it is read may be missing
        from it; of SQLite, also one of the same instant as the last (a clock tick, some milliseconds)."""
        with self._translated():
            return dialects.version(self._engine)

    def runs(self, namespace: str | None = None, limit: int | None = None) -> list[RunRow]:
        """Runs, newest first, of one namespace or of all."""
        query = select(schema.runs).order_by(desc(schema.runs.c.created_at), schema.runs.c.run_id).limit(limit)
        if namespace is not None:
            query = query.where(schema.runs.c.namespace == namespace)
        return [RunRow(**row) for row in self._rows(query)]

    def run(self, name: str, namespaces: Collection[str] | None = None) -> RunRow | None:
        """The run with this ID, else the newest run of the job with this name, in one of `namespaces` (None: all).

        Raises AmbiguousRunError if runs of several namespaces have that name: anybody may name a job as another's.
        """
        table = schema.runs
        named = or_(table.c.run_id == name, table.c.name == name)
        if namespaces is not None:
            named = and_(named, table.c.namespace.in_(namespaces))
        newest = select(table).where(named).order_by(desc(table.c.run_id == name), desc(table.c.created_at)).limit(1)
        if not (rows := self._rows(newest)):
            return None
        row = RunRow(**rows[0])
        if row.run_id == name and RUN_ID.fullmatch(name):
            return row
        if len(found := self._rows(select(table.c.namespace).where(named).distinct())) > 1:
            raise AmbiguousRunError(name, sorted(other["namespace"] for other in found))
        return row

    def summaries(
        self, metrics: Sequence[str] = (), namespace: str | None = None, limit: int | None = None
    ) -> list[RunSummary]:
        """Runs, newest first, each with its last step and the last values of `metrics`, in three queries."""
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
        """Sorted names of the run's metrics."""
        return sorted(self.latest(run_id))

    def latest(self, run_id: str) -> dict[str, CurvePoint]:
        """The last value of each metric: that of the newest attempt at its highest step."""
        return self._latest([run_id], None).get(run_id, {})

    def curve(self, run_id: str, metric: str, since_step: int | None = None) -> list[CurvePoint]:
        """The metric's points after `since_step`, by step; of each step that of the highest attempt."""
        with self._connection() as connection:
            return curves.curve_of(connection, run_id, metric, since_step)

    def since(self, run_id: str, metrics: Sequence[str], after_step: int) -> dict[str, list[CurvePoint]]:
        """Points of several curves after `after_step`. After a restart, a curve continues at a lower step: then read
        from the step that the newest of `attempts` resumed from."""
        with self._connection() as connection:
            return curves.points_since(connection, run_id, metrics, after_step)

    def overwritten(
        self, run_id: str, metrics: Sequence[str], places: Sequence[overwritten.Place]
    ) -> dict[str, list[CurvePoint]]:
        """Those points of several curves at `places` (`overwritten.repeated_steps`) that have a newer one at their
        step, by step. Curves without any are left out."""
        with self._connection() as connection:
            return overwritten.overwritten_points(connection, run_id, metrics, places)

    def buckets(
        self,
        run_ids: Sequence[str],
        metrics: Sequence[str],
        *,
        buckets: int = 400,
        from_step: int | None = None,
        to_step: int | None = None,
    ) -> dict[tuple[str, str], list[Bucket]]:
        """Curves by (run, metric), each in about `buckets` buckets with common boundaries, or in single steps if there
        are no more than that. Extremes are kept. A bucket at an end of the range may extend beyond it. Curves without
        points are left out."""
        with self._connection() as connection:
            return curves.buckets_of(connection, run_ids, metrics, buckets, from_step, to_step)

    def moments(self, run_id: str, metric: str, most: int) -> list[tuple[int, float]]:
        """When steps were: (step, Unix seconds) of at most `most` + 1 points of the metric, evenly spread."""
        with self._connection() as connection:
            return curves.moments_of(connection, run_id, metric, most)

    def sparklines(self, run_ids: Sequence[str], metric: str, buckets: int = 40) -> dict[str, list[float | None]]:
        """One metric of many runs, each as the means of at most `buckets` buckets over the run's own steps."""
        with self._connection() as connection:
            return curves.sparklines_of(connection, run_ids, metric, buckets)

    def run_table(
        self,
        metrics: Sequence[str] = (),
        *,
        namespace: str | None = None,
        states: Sequence[str] | None = None,
        owner: str | None = None,
        search: str | None = None,
        limit: int | None = 1000,
        offset: int = 0,
    ) -> list[RunTableRow]:
        """Runs, newest first, with the last values of `metrics`. `search` is a part of the run ID or job name."""
        with self._connection() as connection:
            return run_table.run_table_of(
                connection,
                metrics,
                namespace=namespace,
                states=states,
                owner=owner,
                search=search,
                limit=limit,
                offset=offset,
            )

    def last_values(self, run_ids: Sequence[str], metrics: Sequence[str]) -> dict[str, dict[str, CurvePoint]]:
        """The last value of each of the metrics, by run; runs without any are left out."""
        return self._latest(run_ids, metrics)

    def spec_fields(self, run_ids: Sequence[str], paths: Sequence[str]) -> dict[str, dict[str, str]]:
        """Fields of the runs' specs as text, by run and dotted path such as `optimizer.learningRate`. They may be
        secrets: `dapo_core.run.redaction`."""
        with self._connection() as connection:
            return run_table.spec_fields_of(connection, run_ids, paths)

    def gpus(self, run_ids: Sequence[str]) -> dict[str, int]:
        """How many GPUs the pods of each run request together, by its spec; 0 for one without a topology."""
        with self._connection() as connection:
            return run_table.gpus_of(connection, run_ids)

    def validations(self, run_ids: Sequence[str]) -> dict[str, list[ValidationResult]]:
        """The results of the runs' validation sets, of each run by the set's name; runs without any are left out."""
        with self._connection() as connection:
            return run_table.validations_of(connection, run_ids)

    def progress(
        self,
        run_ids: Sequence[str],
        metrics: Sequence[str] = (),
        history: Sequence[str] = (),
        *,
        first_steps: int = FIRST_STEPS,
        last_steps: int = LAST_STEPS,
    ) -> dict[str, RunProgress]:
        """The progress of each of the runs, with the last values of `metrics` and the curves of `history` at their
        first and last steps. Every run is in the result. The cost does not depend on the length of the runs."""
        with self._connection() as connection:
            return run_table.progress_of(connection, run_ids, metrics, history, first_steps, last_steps)

    def marks(self, run_ids: Sequence[str], metrics: Sequence[str]) -> dict[str, RunMark]:
        """What changes in each of the runs when it reports anything about itself or these metrics."""
        with self._connection() as connection:
            return run_changes.marks_of(connection, run_ids, metrics)

    def curve_part(
        self, run_id: str, metrics: Sequence[str], mark: RunMark, from_step: int | None, most: int
    ) -> CurvePart:
        """At most `most` points of a run's curves from `from_step` on, as its newest attempt continues them: steps that
        it repeats, or has yet to repeat, are not those of older attempts."""
        with self._connection() as connection:
            return run_changes.curve_part_of(connection, run_id, metrics, mark, from_step, most)

    def next_parts(
        self, known: Mapping[str, tuple[RunMark, int]], metrics: Sequence[str], most: int
    ) -> dict[str, CurvePart]:
        """`curve_part` of many runs, each from a step of its newest attempt on, in one query. Without those that have
        to be read one by one; of more than `most` points together all have."""
        with self._connection() as connection:
            return run_changes.next_parts_of(connection, metrics, known, most)

    def alerts(
        self,
        run_ids: Sequence[str] | None = None,
        *,
        namespace: str | None = None,
        open_only: bool = False,
        limit: int | None = None,
    ) -> list[AlertRow]:
        """Alerts, newest first, of some runs, of a namespace, or all; `open_only`: those that hold now."""
        table, runs = schema.alerts, schema.runs
        newest = desc(table.c.first_seen)
        place = func.row_number().over(partition_by=runs.c.namespace, order_by=newest)
        query = select(table).outerjoin(runs, runs.c.run_id == table.c.run_id)
        # As for runs: each namespace has its share of the limit.
        query = query.order_by(place, newest, table.c.run_id, table.c.rule).limit(limit)
        if run_ids is not None:
            query = query.where(table.c.run_id.in_(run_ids))
        if namespace is not None:
            query = query.where(runs.c.namespace == namespace)
        if open_only:
            query = query.where(table.c.cleared_at.is_(None))
        rows = [AlertRow(**row) for row in self._rows(query)]
        return sorted(rows, key=lambda row: (-row.first_seen, row.run_id, row.rule))

    def annotations(
        self, run_ids: Sequence[str] | None = None, *, limit: int | None = None, longest: int = MAX_NOTE
    ) -> list[AnnotationRow]:
        """What people say of some runs, or of all, without what they took back; `longest`: characters of a note. With
        a limit, each namespace has its share of it, the newest first."""
        table, runs = schema.annotations, schema.runs
        place = func.row_number().over(partition_by=runs.c.namespace, order_by=desc(table.c.at))
        value = func.substr(table.c.value, 1, longest).label("value")
        query = select(*(value if column is table.c.value else column for column in table.c))
        query = query.outerjoin_from(table, runs, runs.c.run_id == table.c.run_id).where(table.c.removed.is_(False))
        if run_ids is not None:
            query = query.where(table.c.run_id.in_(run_ids))
        if limit is not None:
            query = query.order_by(place, desc(table.c.at)).limit(limit)
        return [AnnotationRow(**row) for row in self._rows(query)]

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
        """The run's sample objects, highest step and attempt first."""
        table = schema.samples
        query = select(table).where(table.c.run_id == run_id).order_by(desc(table.c.step), desc(table.c.attempt))
        return [SamplesRow(**row) for row in self._rows(query)]

    def evaluations(self, run_id: str | None = None, subject: str | None = None) -> list[EvaluationRow]:
        """Results of `dapo evaluate`, newest first: of a run's checkpoints, of a subject, or all."""
        table = schema.evaluations
        query = select(table).order_by(desc(table.c.created_at), table.c.evaluation_id, table.c.set_name)
        if run_id is not None:
            query = query.where(table.c.run_id == run_id)
        if subject is not None:
            query = query.where(table.c.subject == subject)
        return [EvaluationRow(**row) for row in self._rows(query)]

    def _latest(self, run_ids: Sequence[str], metrics: Sequence[str] | None) -> dict[str, dict[str, CurvePoint]]:
        table, names = schema.latest, schema.metric_names
        columns = (table.c.step, table.c.attempt, table.c.ts, table.c.value, table.c.flag)
        query = select(table.c.run_id, names.c.name, *columns).join(names, names.c.metric_id == table.c.metric_id)
        query = query.where(table.c.run_id.in_(run_ids))
        if metrics is not None:
            query = query.where(names.c.name.in_(metrics))
        by_run: dict[str, dict[str, CurvePoint]] = {}
        for row in self._rows(query):
            run_id, name = row.pop("run_id"), row.pop("name")
            by_run.setdefault(run_id, {})[name] = CurvePoint(**row)
        return by_run

    def _rows(self, query: Select[Any]) -> list[dict[str, Any]]:
        with self._connection() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise dialects.translate(error, "a query") from error


def _step(attempts: Sequence[AttemptRow]) -> int | None:
    """The last step of the newest attempt, or before that the step it started from."""
    if not attempts:
        return None
    newest = max(attempts, key=lambda attempt: attempt.attempt)
    return newest.step_to if newest.step_to is not None else newest.step_from
