"""What is known of a run while it is watched: records go in, the state of the view comes out. Pure.

Times are Unix seconds. Curves hold, for each step, the value of the newest attempt.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dapo_core.run.metrics import PHASES, STAGES, STEP_SECONDS
from dapo_core.run.progress import Cadence, pace_of, seconds_left
from dapo_core.run.sparkline import Point
from dapo_trainer.process.heartbeat import Heartbeat

EVENTS_KEPT: Final = 50
CHANGE_STEPS: Final = 5

_STAGE_METRICS: Final = {stage: [phase.metric for phase in PHASES if phase.stage == stage] for stage in STAGES}

Mood = Literal["running", "waiting", "stopping", "done", "failed", "stopped"]
Curves = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Note:
    """An event as a line. `warning` sets it apart."""

    at: float
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class View:
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
    max_response_tokens: int | None = None
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


def with_attempt(view: View, number: int, restarts: int, at: float) -> View:
    """A new attempt starts; what was finished stays, but says nothing of the new attempt's pace."""
    view = with_mood(view, "running")
    return replace(view, attempt=number, restarts=restarts, phase="start", phase_since=at, detail="", step_at=None)


def with_heartbeat(view: View, beat: Heartbeat | None) -> View:
    """What the trainer does now."""
    if beat is None:
        return view
    total = beat.total_steps or view.total_steps
    return replace(view, phase=beat.phase, phase_since=beat.since, detail=beat.detail, total_steps=total)


def with_step(view: View, attempt: int, step: int, at: float, values: Mapping[str, float]) -> View:
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


def with_event(view: View, note: Note) -> View:
    """One more event; the oldest are forgotten."""
    return replace(view, events=(*view.events, note)[-EVENTS_KEPT:])


def with_mood(view: View, mood: Mood, notice: str = "") -> View:
    """How the run stands, with a sentence for the last line."""
    return replace(view, mood=mood, notice=notice)
