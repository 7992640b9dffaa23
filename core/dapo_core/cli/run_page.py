"""What `dapo runs` and `dapo show` print: the table of runs, the page of one run, and evaluations."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.db import (
    ENDED_STATES,
    AttemptRow,
    CheckpointRow,
    CurvePoint,
    EvaluationRow,
    EventRow,
    MetadataReader,
    RunRow,
    RunSummary,
)
from dapo_core.errors import StoreError
from dapo_core.run.checkpoint import newest_committed
from dapo_core.run.effective_time import effective_time
from dapo_core.run.formatting import ago, duration, moment, number, percent, size, sparkline
from dapo_core.run.metrics import ENGINES_WAITED, STEP_SECONDS, Headline, in_percent, validation_of
from dapo_core.run.progress import LAST_METRICS, PACE_METRICS, progress_of

_HEADLINES: Final = (Headline.REWARD, Headline.ACCURACY, Headline.LENGTH)


# Causes of lost time that the page names.
_CAUSES: Final = 4


def runs_table(summaries: Sequence[RunSummary], now: float) -> Table:
    """One row per run, newest first. `Reported` is the age of its last metrics: a run whose machine died is still
    Running."""
    # On a narrow terminal the other columns give way: a cut run ID could not be copied.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("Run", no_wrap=True, min_width=max((len(summary.run.run_id) for summary in summaries), default=3))
    table.add_column("State", no_wrap=True, min_width=max((len(summary.run.state) for summary in summaries), default=5))
    for heading in ("Step", "Attempts", *(headline.title for headline in _HEADLINES), "Created", "Reported"):
        table.add_column(heading, justify="right")
    for summary in summaries:
        run, values = summary.run, summary.values
        newest = max((point.ts for point in values.values()), default=None)
        table.add_row(
            run.run_id,
            Text(run.state, state_style(run.state)),
            steps_text(summary.step, run.total_steps),
            str(summary.attempts),
            *(_last(values, headline) for headline in _HEADLINES),
            ago(run.created_at, now),
            ago(newest, now),
        )
    return table


def steps_text(step: int | None, total: int | None) -> str:
    """`12/60`; `12` without a total, `-` without a step."""
    return "-" if step is None else f"{step}/{total}" if total else str(step)


def value_text(metric: str, value: float | None) -> str:
    """A value of `metric`: shares and probabilities in percent."""
    return percent(value) if in_percent(metric) else number(value)


def _last(values: Mapping[str, CurvePoint], headline: Headline) -> str:
    point = headline.of(values)
    return value_text(headline.metric(values), None if point is None else point.number)


def state_style(state: str) -> str:
    """Rich style of a run's or checkpoint's state."""
    return {
        "Running": "cyan",
        "Succeeded": "green",
        "committed": "green",
        "Failed": "red",
        "failed": "red",
        "Suspended": "yellow",
        "Stopped": "yellow",
        "Restarting": "yellow",
    }.get(state, "dim")


@dataclass(frozen=True)
class RunRecord:
    """What the page shows of a run: its last step, the seconds left if they are known, curves by the metric's name, and
    events, newest first. `step_seconds` is the curve of the duration of steps, `waited_seconds` of what they
    waited without any engine."""

    run: RunRow
    step: int | None
    seconds_left: int | None
    attempts: Sequence[AttemptRow]
    latest: Mapping[str, CurvePoint]
    curves: Mapping[str, Sequence[CurvePoint]]
    checkpoints: Sequence[CheckpointRow]
    events: Sequence[EventRow]
    evaluations: Sequence[EvaluationRow] = ()
    step_seconds: Sequence[CurvePoint] = ()
    waited_seconds: Sequence[CurvePoint] = ()


def load(reader: MetadataReader, run: RunRow, events: int) -> RunRecord:
    """Reads what the page shows, with at most `events` events. Raises StoreError."""
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
        step_seconds=reader.curve(run.run_id, STEP_SECONDS),
        waited_seconds=reader.curve(run.run_id, ENGINES_WAITED),
    )


def _evaluations_of(reader: MetadataReader, run_id: str) -> Sequence[EvaluationRow]:
    """None in the store of an older version, which has no table for them: everything else can be read."""
    try:
        return reader.evaluations(run_id)
    except StoreError:
        return ()


def page(record: RunRecord, now: float, width: int = 100) -> Iterator[RenderableType]:
    """The parts of the page, from top to bottom, without empty ones."""
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
    if (effective := _effective(record, now)) is not None:
        table.add_row("Effective", effective)
    if run.owner:
        table.add_row("Owner", run.owner)
    if run.tags:
        table.add_row("Tags", ", ".join(f"{name}={value}" for name, value in sorted(run.tags.items())))
    return table


def _effective(record: RunRecord, now: float) -> str | None:
    """The share of its time that became steps, and what took the rest; None before the first step."""
    time = effective_time(record.attempts, record.step_seconds, now, record.waited_seconds)
    if time.ratio is None or not time.useful:
        return None
    lost = ", ".join(f"{duration(seconds)} {cause}" for cause, seconds in list(time.lost.items())[:_CAUSES])
    return f"{percent(time.ratio)} of {duration(time.held)} with pods{f'; lost: {lost}' if lost else ''}"


def _curves(record: RunRecord, width: int) -> RenderableType | None:
    table = _table("", "", "First", "Last", "Min", "Max", numbers=("First", "Last", "Min", "Max"))
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
    table = _table("Metric", "", "First", "Last", "Best", "At step", numbers=("First", "Last", "Best", "At step"))
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
    table = _table("Attempt", "Started", "Duration", "Steps", "Exit", "Reason", numbers=("Duration", "Steps", "Exit"))
    for attempt in record.attempts:
        took = duration((attempt.ended_at if attempt.ended_at is not None else now) - attempt.started_at)
        steps = f"{attempt.step_from if attempt.step_from is not None else '?'} to {attempt.step_to or '-'}"
        counted = "" if attempt.counted is None else " (counted)" if attempt.counted else " (not counted)"
        reason = f"{attempt.reason or 'running'}{counted}{f': {attempt.message}' if attempt.message else ''}"
        code = "" if attempt.exit_code is None else str(attempt.exit_code)
        table.add_row(str(attempt.attempt), moment(attempt.started_at), took, steps, code, reason)
    return table if table.row_count else None


def _checkpoints(record: RunRecord) -> RenderableType | None:
    table = _table("Step", "State", "Size", "Resume with", numbers=("Size",))
    newest = newest_committed(record.checkpoints)
    for row in record.checkpoints:
        if row.state == "deleted":
            continue
        state = Text(row.state, state_style(row.state))
        table.add_row(str(row.step), state, size(row.size_bytes), _resume_with(row, newest))
    return table if table.row_count else None


def _resume_with(row: CheckpointRow, newest: CheckpointRow | None) -> str:
    if row.state != "committed":
        return row.decision or ""
    if newest is not None and row.step == newest.step:
        return f"dapo resume {row.run_id}"
    # Only the newest one continues this run; an older one starts another run.
    return f"checkpoints.resumeFrom: {row.run_id}@{row.step}"


def _events(record: RunRecord) -> RenderableType | None:
    table = Table.grid(padding=(0, 2))
    for event in reversed(record.events):
        style = "yellow" if event.type == "Warning" else ""
        step = "" if event.step is None else f"step {event.step}"
        table.add_row(Text(moment(event.ts), "dim"), step, Text(event.reason, style), Text(event.message))
    return table if table.row_count else None


def _table(*headings: str, numbers: Sequence[str]) -> Table:
    """Columns whose headings are in `numbers` are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table


def _finite(curve: Sequence[CurvePoint]) -> list[float]:
    return [point.number for point in curve if math.isfinite(point.number)]


def evaluations_list(rows: Sequence[EvaluationRow]) -> Group:
    """Two lines per set, newest first: results and sampling. Intervals are 95% over prompts."""
    return Group(*(line for row in rows for line in (_results(row), _sampled(row))))


def _results(row: EvaluationRow) -> Text:
    results = row.results
    k = results["samples"]
    mean, passed, majority = results["mean"], results["pass_at"][str(k)], results["majority"]
    where = "" if row.step is None else f"  step {row.step}"
    return Text.assemble(
        (moment(row.created_at), "dim"),
        f"{where}  ",
        (row.set_name, "bold"),
        f"  mean@{k} {percent(mean['value'])}{_interval(mean)}"
        f"  pass@{k} {percent(passed['value'])}  maj@{k} {percent(majority['value'])}",
    )


def _sampled(row: EvaluationRow) -> Text:
    results, sampling = row.results, row.sampling
    drawn = f"{results['prompts']} x {results['samples']}"
    how = f"temperature {sampling['temperature']:g}, top-p {sampling['topP']:g}"
    length = f"{results['lengths']['mean']:.1f} of at most {sampling['maxResponseTokens']:,} tokens"
    return Text(f"    {drawn}, {how}; {length}, {percent(results['truncated'])} truncated", "dim")


def _interval(estimate: Mapping[str, Any]) -> str:
    low, high = estimate["low"], estimate["high"]
    return "" if low is None or high is None else f" ({percent(low)} to {percent(high)})"
