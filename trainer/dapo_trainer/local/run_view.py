"""What is known of a run while it is shown: records go in, the state of the view comes out.

Times are Unix seconds. Curves hold, for each step, the value of the newest attempt.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from dapo_core.db import MetadataReader
from dapo_core.errors import StoreError
from dapo_core.jobspec import DAPOJob
from dapo_core.run.formatting import Point
from dapo_core.run.metrics import PHASES, STAGES, STEP_SECONDS
from dapo_core.run.progress import Cadence, pace_of, seconds_left
from dapo_trainer.process.trainer_process import Heartbeat
from dapo_trainer.spool import SpoolReader
from dapo_trainer.spool.records import Record

EVENTS_KEPT: Final = 50
CHANGE_STEPS: Final = 5

_STAGE_METRICS: Final = {stage: [phase.metric for phase in PHASES if phase.stage == stage] for stage in STAGES}

Mood = Literal["running", "waiting", "stopping", "done", "failed", "stopped"]
Curves = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class FinishedStep:
    """One finished step as the trainer reported it, with NaN and infinities as such."""

    attempt: int
    step: int
    at: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Note:
    """An event as a line. `warning` sets it apart."""

    at: float
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class RunView:
    """The state of the view.

    `step` is the last finished one, None before the first, and `step_at` when the attempt finished it. `step_from` is
    the step before the first of attempt `step_attempt`, which did the last one.
    """

    run_id: str
    model: str
    mode: str
    started_at: float
    total_steps: int | None = None
    cadence: Cadence = field(default_factory=Cadence)
    max_restarts: int = 0
    attempt: int = 0
    restarts: int = 0
    mood: Mood = "running"
    phase: str = "start"
    phase_since: float = 0.0
    detail: str = ""
    step: int | None = None
    step_attempt: int = 0
    step_at: float | None = None
    step_from: int = 0
    curves: Curves = field(default_factory=dict)
    events: tuple[Note, ...] = ()
    notice: str = ""
    log: str = ""

    def curve(self, metric: str) -> list[Point]:
        """Steps and values of one metric in the order of steps."""
        return sorted(self.curves.get(metric, {}).items())

    def last(self, metric: str) -> float | None:
        """The newest value of a metric."""
        curve = self.curves.get(metric)
        return curve[max(curve)] if curve else None

    def change(self, metric: str) -> float | None:
        """Mean of the last five values less the mean of the five before; None while there are too few."""
        values = [value for _, value in self.curve(metric)]
        now, before = values[-CHANGE_STEPS:], values[-2 * CHANGE_STEPS : -CHANGE_STEPS]
        return sum(now) / len(now) - sum(before) / len(before) if len(before) == CHANGE_STEPS else None

    def stage_seconds(self, stage: str) -> float:
        """Seconds of one of `metrics.STAGES` in the last step; 0 when it was not in it."""
        return sum(self.curves.get(m, {}).get(self.step or 0, 0.0) for m in _STAGE_METRICS[stage])

    def total_stage_seconds(self) -> dict[str, float]:
        """Seconds of each of `metrics.STAGES` over all steps, of those that took any."""
        totals = {stage: sum(sum(self.curves.get(m, {}).values()) for m in _STAGE_METRICS[stage]) for stage in STAGES}
        return {stage: seconds for stage, seconds in totals.items() if seconds > 0}

    def seconds_left(self) -> int | None:
        """Whole seconds from the last step until the run is complete; None before the attempt's first step."""
        if self.step is None or self.step_attempt < self.attempt:
            return None
        return seconds_left(pace_of(self.curves, self.step, self.step_from), self.step, self.total_steps, self.cadence)


def first_view(run_id: str, job: DAPOJob, now: float) -> RunView:
    """The view of a run that is about to start: model, mode, steps and limits, from the job. Pure."""
    spec = job.spec
    return RunView(
        run_id=run_id,
        model=model_name(spec.model.source),
        mode=spec.topology.mode,
        started_at=now,
        total_steps=spec.schedule.steps,
        cadence=Cadence.of(spec),
        max_restarts=spec.run_policy.max_restarts,
        phase_since=now,
    )


def model_name(source: str) -> str:
    """`owner/name` of a model of the hub, the last folder of any other. Pure."""
    if source.startswith("hf://"):
        return source.removeprefix("hf://")
    return unquote(urlsplit(source).path).rstrip("/").rsplit("/", 1)[-1] or source


def with_attempt(view: RunView, number: int, restarts: int, at: float) -> RunView:
    """A new attempt starts; what was finished stays, but not its pace."""
    view = with_mood(view, "running")
    return replace(view, attempt=number, restarts=restarts, phase="start", phase_since=at, detail="", step_at=None)


def with_heartbeat(view: RunView, beat: Heartbeat | None) -> RunView:
    """What the trainer does now."""
    if beat is None:
        return view
    total = beat.total_steps or view.total_steps
    return replace(view, phase=beat.phase, phase_since=beat.since, detail=beat.detail, total_steps=total)


def with_step(view: RunView, attempt: int, step: int, at: float, values: Mapping[str, float]) -> RunView:
    """A finished step. The first one of a new attempt drops what older attempts did beyond it."""
    curves = view.curves
    if attempt > view.step_attempt:
        before = {name: {s: v for s, v in curve.items() if s <= step} for name, curve in curves.items()}
        curves = {name: curve for name, curve in before.items() if curve}
        # A validation before the first step is reported with the step that the attempt resumed from.
        view = replace(view, step_attempt=attempt, step_from=step - (STEP_SECONDS in values))
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    curves = {**curves, **{name: {**curves.get(name, {}), step: value} for name, value in finite.items()}}
    return replace(view, step=step, step_at=at, curves=curves)


def with_event(view: RunView, note: Note) -> RunView:
    """One more event; the oldest are dropped."""
    return replace(view, events=(*view.events, note)[-EVENTS_KEPT:])


def with_mood(view: RunView, mood: Mood, notice: str = "") -> RunView:
    """The run's state, with a sentence for the last line."""
    return replace(view, mood=mood, notice=notice)


def with_history(view: RunView, reader: MetadataReader, until_step: int | None = None) -> RunView:
    """The view with the steps and events that the metadata store has of the run, so that it does not start empty.

    Unchanged when the store cannot be read: nothing depends on what is shown.
    """
    try:
        return _replayed(view, reader, until_step)
    except StoreError:
        return view


def _replayed(view: RunView, reader: MetadataReader, until_step: int | None) -> RunView:
    steps: dict[int, dict[str, float]] = {}
    last: dict[int, tuple[int, float]] = {}
    for metric in reader.metrics(view.run_id):
        for point in reader.curve(view.run_id, metric):
            steps.setdefault(point.step, {})[metric] = point.number
            last[point.step] = max((point.attempt, point.ts), last.get(point.step, (0, 0.0)))
    shown = [step for step in sorted(steps) if until_step is None or step <= until_step]
    # One attempt for all: the reader has already chosen whose value of a step counts.
    newest = max((last[step][0] for step in shown), default=0)
    for step in shown:
        view = with_step(view, newest, step, last[step][1], steps[step])
    for event in reversed(reader.events(view.run_id, limit=20)):
        view = with_event(view, Note(event.ts, event.reason, event.message, warning=event.type == "Warning"))
    return replace(view, attempt=newest)


class SpoolFeed:
    """The steps and events of an attempt, read from its spool while the trainer writes it."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._reader: SpoolReader | None = None

    def read(self) -> Sequence[FinishedStep | Note]:
        """What was added since the last call; nothing while there is no spool."""
        if self._reader is None:
            if not self._spool.is_dir():
                return []
            self._reader = SpoolReader(self._spool)
        return [shown for record in self._reader.read() if (shown := shown_record(record)) is not None]


def shown_record(record: Record) -> FinishedStep | Note | None:
    """A record as the view takes it; None for what is not shown (a checkpoint comes with an event). Pure."""
    if record.kind == "step":
        return FinishedStep(record.attempt, record.step or 0, record.ts, record.numbers)
    if record.kind == "event":
        body = record.body
        return Note(record.ts, str(body["reason"]), str(body["message"]), warning=body.get("type") == "Warning")
    return None
