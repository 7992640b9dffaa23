"""What is known of a run while it is watched: records go in, the state of the view comes out. Pure.

Times are Unix seconds. Curves hold, for each step, the value of the newest attempt.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dapo_trainer.local.sparkline import Point
from dapo_trainer.process.heartbeat import Heartbeat

EVENTS_KEPT: Final = 50
# Steps from whose distance the time left is told: enough to hold a validation and a checkpoint.
PACE_STEPS: Final = 20
CHANGE_STEPS: Final = 5

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
    """The state of the view. `step` is the last finished one, None before the first."""

    run_id: str
    model: str
    mode: str
    started_at: float
    total_steps: int | None = None
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
    finished: tuple[tuple[int, float], ...] = ()
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

    def seconds_left(self) -> float | None:
        """Steps left at the pace of this attempt's last steps; None before its second step."""
        if self.total_steps is None or len(self.finished) < 2:
            return None
        (step0, at0), (step1, at1) = self.finished[0], self.finished[-1]
        return max(0.0, (at1 - at0) / max(1, step1 - step0) * (self.total_steps - step1))


def with_attempt(view: View, number: int, restarts: int, at: float) -> View:
    """A new attempt starts; what was finished stays, the pace is measured anew."""
    view = with_mood(view, "running")
    return replace(view, attempt=number, restarts=restarts, phase="start", phase_since=at, detail="", finished=())


def with_heartbeat(view: View, beat: Heartbeat | None) -> View:
    """What the trainer does now."""
    if beat is None:
        return view
    total = beat.total_steps or view.total_steps
    return replace(view, phase=beat.phase, phase_since=beat.since, detail=beat.detail, total_steps=total)


def with_step(view: View, attempt: int, step: int, at: float, values: Mapping[str, float]) -> View:
    """A finished step. The first one of a new attempt drops what older attempts did from there on."""
    curves = view.curves
    if attempt > view.step_attempt:
        curves = {name: {s: v for s, v in curve.items() if s < step} for name, curve in curves.items()}
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    curves = {**curves, **{name: {**curves.get(name, {}), step: value} for name, value in finite.items()}}
    finished = (*view.finished, (step, at))[-PACE_STEPS - 1 :]
    return replace(view, step=step, step_attempt=max(attempt, view.step_attempt), curves=curves, finished=finished)


def with_event(view: View, note: Note) -> View:
    """One more event; the oldest are forgotten."""
    return replace(view, events=(*view.events, note)[-EVENTS_KEPT:])


def with_mood(view: View, mood: Mood, notice: str = "") -> View:
    """How the run stands, with a sentence for the last line."""
    return replace(view, mood=mood, notice=notice)
