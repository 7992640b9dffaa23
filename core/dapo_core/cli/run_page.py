"""The page of `dapo show RUN`: what is read for it, and how it is laid out."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.cli.evaluations import evaluations_list
from dapo_core.cli.run_tables import state_style, steps_text, value_text
from dapo_core.db import ENDED_STATES, AttemptRow, CheckpointRow, CurvePoint, EventRow, MetadataReader, RunRow
from dapo_core.db.evaluations import EvaluationRow
from dapo_core.errors import StoreError
from dapo_core.run.checkpoint import newest_committed
from dapo_core.run.formatting import ago, duration, moment, percent, size
from dapo_core.run.metrics import Headline, validation_of
from dapo_core.run.progress import LAST_METRICS, PACE_METRICS, progress_of
from dapo_core.run.sparkline import sparkline


@dataclass(frozen=True)
class RunRecord:
    """All that the page shows of a run: its last step, the seconds left where they are known, curves by the metric's
    name, and events, newest first."""

    run: RunRow
    step: int | None
    seconds_left: int | None
    attempts: Sequence[AttemptRow]
    latest: Mapping[str, CurvePoint]
    curves: Mapping[str, Sequence[CurvePoint]]
    checkpoints: Sequence[CheckpointRow]
    events: Sequence[EventRow]
    evaluations: Sequence[EvaluationRow] = ()


def load(reader: MetadataReader, run: RunRow, events: int) -> RunRecord:
    """Read a run's page. Raises StoreError."""
    latest = reader.latest(run.run_id)
    shown = [name for headline in Headline if (name := headline.metric(latest)) in latest]
    shown += sorted(name for name in latest if validation_of(name) is not None)
    progress = progress_of(reader.progress([run.run_id], LAST_METRICS, PACE_METRICS)[run.run_id])
    return RunRecord(
        run=run,
        step=progress.step,
        seconds_left=None if run.state in ENDED_STATES else progress.eta_seconds,
        attempts=reader.attempts(run.run_id),
        latest=latest,
        curves={name: reader.curve(run.run_id, name) for name in shown},
        checkpoints=reader.checkpoints(run.run_id),
        events=reader.events(run.run_id, events),
        evaluations=_evaluations_of(reader, run.run_id),
    )


def _evaluations_of(reader: MetadataReader, run_id: str) -> Sequence[EvaluationRow]:
    """None in a store that an older program made: it has no table for them, and all else could be read."""
    try:
        return reader.evaluations(run_id)
    except StoreError:
        return ()


def page(record: RunRecord, now: float, width: int = 100) -> Iterator[RenderableType]:
    """The parts of the page, from top to bottom; a part that has nothing to say is left out."""
    yield _head(record, now)
    parts: list[tuple[str, RenderableType | None]] = [
        ("Curves", _curves(record, max(10, min(60, width - 60)))),
        ("Validation", _validation(record)),
        ("Evaluations", evaluations_list(record.evaluations) if record.evaluations else None),
        ("Attempts", _attempts(record, now)),
        ("Checkpoints", _checkpoints(record)),
        ("Events", _events(record)),
    ]
    for title, part in parts:
        if part is not None:
            yield Text(f"\n{title}", "bold")
            yield part


def _head(record: RunRecord, now: float) -> RenderableType:
    run = record.run
    table = Table.grid(padding=(0, 2))
    state = Text.assemble((run.state, f"bold {state_style(run.state)}"), f"  {run.message or run.reason or ''}")
    table.add_row(Text("Run", "bold"), Text(run.run_id, "bold"))
    table.add_row("State", state)
    reported = max((point.ts for point in record.latest.values()), default=None)
    table.add_row("Step", f"{steps_text(record.step, run.total_steps)}  (last metrics {ago(reported, now)})")
    if record.seconds_left is not None:
        table.add_row("Time left", duration(record.seconds_left))
    ended = run.ended_at if run.ended_at is not None else now
    took = duration(ended - run.started_at) if run.started_at is not None else "-"
    table.add_row("Started", f"{moment(run.started_at)}  ({took})")
    if run.owner:
        table.add_row("Owner", run.owner)
    if run.tags:
        table.add_row("Tags", ", ".join(f"{name}={value}" for name, value in sorted(run.tags.items())))
    return table


def _curves(record: RunRecord, width: int) -> RenderableType | None:
    table = _table("", "", "first", "last", "least", "most")
    for headline in Headline:
        name = headline.metric(record.latest)
        values = _finite(record.curves.get(name, ()))
        if values:
            figures = (values[0], values[-1], min(values), max(values))
            table.add_row(
                headline.title,
                Text(sparkline(values, width), "cyan"),
                *(value_text(name, figure) for figure in figures),
            )
    return table if table.row_count else None


def _validation(record: RunRecord) -> RenderableType | None:
    table = _table("Metric", "", "first", "last", "best", "at step")
    for name, curve in record.curves.items():
        points, validation = [point for point in curve if point.value is not None], validation_of(name)
        if validation is None or not points:
            continue
        values = [point.number for point in points]
        best = max(points, key=lambda point: point.number)
        line = Text(sparkline(values, 20), "magenta")
        figures = (percent(value) for value in (values[0], values[-1], best.number))
        table.add_row(f"{validation.set_name} {validation.title}", line, *figures, str(best.step))
    return table if table.row_count else None


def _attempts(record: RunRecord, now: float) -> RenderableType | None:
    table = _table("Attempt", "Started", "took", "steps", "exit", "Reason")
    for each in record.attempts:
        took = duration((each.ended_at if each.ended_at is not None else now) - each.started_at)
        steps = f"{each.step_from if each.step_from is not None else '?'} to {each.step_to or '-'}"
        counted = "" if each.counted is None else " (counted)" if each.counted else " (not counted)"
        reason = f"{each.reason or 'running'}{counted}{f': {each.message}' if each.message else ''}"
        code = "" if each.exit_code is None else str(each.exit_code)
        table.add_row(str(each.attempt), moment(each.started_at), took, steps, code, reason)
    return table if table.row_count else None


def _checkpoints(record: RunRecord) -> RenderableType | None:
    table = _table("Step", "State", "size", "How to go on from it")
    newest = newest_committed(record.checkpoints)
    for row in record.checkpoints:
        if row.state == "deleted":
            continue
        state = Text(row.state, state_style(row.state))
        table.add_row(str(row.step), state, size(row.size_bytes), _way_on(row, newest))
    return table if table.row_count else None


def _way_on(row: CheckpointRow, newest: CheckpointRow | None) -> str:
    if row.state != "committed":
        return row.decision or ""
    if newest is not None and row.step == newest.step:
        return f"dapo resume {row.run_id}"
    # An older one is the start of another run: this one's curves go on from its newest.
    return f"checkpoints.resumeFrom: {row.run_id}@{row.step}"


def _events(record: RunRecord) -> RenderableType | None:
    table = Table.grid(padding=(0, 2))
    for event in reversed(record.events):
        style = "yellow" if event.type == "Warning" else ""
        step = "" if event.step is None else f"step {event.step}"
        table.add_row(Text(moment(event.ts), "dim"), step, Text(event.reason, style), Text(event.message))
    return table if table.row_count else None


def _table(*headings: str) -> Table:
    """Headings in lower case are of numbers, which stand at the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading[:1].islower() else "left", overflow="fold")
    return table


def _finite(curve: Sequence[CurvePoint]) -> list[float]:
    return [point.number for point in curve if math.isfinite(point.number)]
