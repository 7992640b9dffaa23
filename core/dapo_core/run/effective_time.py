"""Effective training time: what of the time in which a run held its pods became steps, and what took the rest. Pure.

Useful is the duration of the steps that count: of each step the newest attempt's. The rest of an attempt is charged to
what caused it: its way to the first step to the end of the attempt before it (STARTING for the run's first), what comes
after its last step that counts to its own end, and what is between its steps to BETWEEN_STEPS. A step that waited while
there was no engine lost that time to NO_ROLLOUTS. Backoff and suspension hold nothing. The share of useful time is what
the literature calls the effective training time ratio (ETTR).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dapo_core.run.reasons import Reason
from dapo_core.run.status import TimeSpent
from dapo_core.run.store_rows import AttemptRow, CurvePoint

STARTING: Final = "Starting"
BETWEEN_STEPS: Final = "BetweenSteps"
NO_ROLLOUTS: Final = Reason.NO_ROLLOUTS
OTHER: Final = "Other"
_RUNNING: Final = "Running"
# Causes that a status names; a trainer's own reasons may be any words.
_NAMED: Final = 8
_LONGEST: Final = 64
# A century: whoever may write rows may have written any times.
_MOST: Final = 100 * 365 * 86_400


@dataclass(frozen=True)
class EffectiveTime:
    """Seconds. `lost` is by cause: the reason of an attempt's end, STARTING, BETWEEN_STEPS or NO_ROLLOUTS; the most
    first. What has happened since the last step of a running attempt is neither useful nor lost yet."""

    held: float
    useful: float
    lost: Mapping[str, float]

    @property
    def ratio(self) -> float | None:
        """The share of useful time in what is decided, from 0 to 1; None before anything is."""
        decided = self.useful + sum(self.lost.values())
        return self.useful / decided if decided > 0 else None

    @property
    def spent(self) -> TimeSpent:
        """The same for a status: whole seconds, the largest causes by name."""
        lost = {cause[:_LONGEST]: _whole(seconds) for cause, seconds in list(self.lost.items())[:_NAMED]}
        if (rest := _whole(sum(list(self.lost.values())[_NAMED:]))) > 0:
            lost[OTHER] = rest
        ratio = None if self.ratio is None or not math.isfinite(self.ratio) else round(self.ratio, 3)
        held, useful = _whole(self.held), _whole(self.useful)
        return TimeSpent(held_seconds=held, useful_seconds=useful, lost_seconds=lost, ettr=ratio)


def effective_time(
    attempts: Sequence[AttemptRow],
    step_seconds: Sequence[CurvePoint],
    now: float,
    waited_seconds: Sequence[CurvePoint] = (),
) -> EffectiveTime:
    """Of a run's attempts, in order, and the curves of the seconds of its steps, and of those in which they waited
    without any engine; `now` is in Unix seconds."""
    held = useful = 0.0
    waits = {(point.attempt, point.step): point.value or 0.0 for point in waited_seconds}
    lost: defaultdict[str, float] = defaultdict(float)
    cause = STARTING
    for attempt in attempts:
        until = max(attempt.started_at, attempt.ended_at if attempt.ended_at is not None else now)
        held += until - attempt.started_at
        steps = [point for point in step_seconds if point.attempt == attempt.attempt and attempt.started_at <= point.ts]
        own = (attempt.reason or STARTING) if attempt.ended_at is not None else _RUNNING
        if not steps:
            lost[own] += until - attempt.started_at
        else:
            trained = sum(point.value or 0.0 for point in steps)
            # Another machine's clock dated the steps.
            begin = min(until, max(attempt.started_at, steps[0].ts - (steps[0].value or 0.0)))
            end = max(begin, min(until, steps[-1].ts))
            trained = min(trained, end - begin)
            idle = min(trained, sum(_idle(point, waits) for point in steps))
            useful += trained - idle
            lost[NO_ROLLOUTS] += idle
            lost[cause] += begin - attempt.started_at
            lost[BETWEEN_STEPS] += end - begin - trained
            lost[own] += until - end
        cause = own
    decided = [(why, seconds) for why, seconds in lost.items() if why != _RUNNING and seconds >= 1.0]
    return EffectiveTime(held, useful, dict(sorted(decided, key=lambda each: -each[1])))


def _whole(seconds: float) -> int:
    return round(min(max(seconds, 0.0), _MOST)) if math.isfinite(seconds) else 0


def _idle(step: CurvePoint, waits: Mapping[tuple[int, int], float]) -> float:
    """Seconds of a step without any engine: no more than it took."""
    return max(0.0, min(step.value or 0.0, waits.get((step.attempt, step.step), 0.0)))
