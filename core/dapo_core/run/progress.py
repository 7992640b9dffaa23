"""How far a run is and how long it will still take: the same numbers in a status, a terminal and a page. Pure.

The time left is the median of the attempt's last steps for each step that is left, and apart from that the median time
of a validation and of a checkpoint for each of those that are left: they come at a cadence of their own, and a step
with a checkpoint says nothing of those without.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run import metrics
from dapo_core.run.formatting import duration
from dapo_core.run.metrics import CHECKPOINT_SECONDS, STEP_SECONDS, VALIDATION_SECONDS, Headline
from dapo_core.run.status import Progress
from dapo_core.run.store_rows import CurvePoint, RunProgress

PACE_STEPS: Final = 20
MAX_SECONDS: Final = 100 * 365 * 86_400
PACE_METRICS: Final = (STEP_SECONDS, VALIDATION_SECONDS, CHECKPOINT_SECONDS)
"""The curves that the time left is computed from."""
LAST_METRICS: Final = (*metrics.HEADLINES, metrics.MEAN_PROBABILITY)
"""The metrics whose last values are part of a run's progress."""
Curves = Mapping[str, Mapping[int, float]]
"""Finite values by step, by metric."""


@dataclass(frozen=True)
class Cadence:
    """Steps between validations and between checkpoints; 0 for a run that has none on the way. The last step has both,
    where there are any."""

    validate_every: int = 0
    checkpoint_every: int = 0

    @classmethod
    def of(cls, spec: DAPOJobSpec) -> "Cadence":
        """That of a job."""
        return cls(spec.schedule.validate_every if spec.data.validation else 0, spec.schedule.checkpoint_every)


@dataclass(frozen=True)
class Pace:
    """Median seconds of a step without its checkpoint, of a validation and of a checkpoint; 0 for what has not happened
    yet."""

    step: float
    validation: float = 0.0
    checkpoint: float = 0.0


def pace_of(curves: Curves, step: int, step_from: int) -> Pace | None:
    """The pace of an attempt that resumed from `step_from` and has finished `step`; None before its first step.

    Validations and checkpoints cost the same in every attempt: those of earlier ones count."""
    saved = curves.get(CHECKPOINT_SECONDS, {})
    times = curves.get(STEP_SECONDS, {})
    mine = [times[at] - saved.get(at, 0.0) for at in sorted(times) if step_from < at <= step]
    if not mine:
        return None
    validation = _recent(curves.get(VALIDATION_SECONDS, {}), step)
    return Pace(median(mine[-PACE_STEPS:]), validation, _recent(saved, step))


def _recent(curve: Mapping[int, float], step: int) -> float:
    """The median over the `PACE_STEPS` steps before the newest value, which every reader of the curve has."""
    newest = max((at for at in curve if at <= step), default=None)
    return 0.0 if newest is None else median(v for at, v in curve.items() if newest - PACE_STEPS < at <= newest)


def seconds_left(pace: Pace | None, step: int | None, total_steps: int | None, cadence: Cadence) -> int | None:
    """Whole seconds from the end of `step` until the run is complete; None where that is not known."""
    if pace is None or step is None or total_steps is None:
        return None
    validations = _times(step, total_steps, cadence.validate_every)
    checkpoints = _times(step, total_steps, cadence.checkpoint_every)
    steps = max(0, total_steps - step)
    left = steps * pace.step + validations * pace.validation + checkpoints * pace.checkpoint
    # Beyond a century the times on record are wrong.
    return round(left) if 0 <= left < MAX_SECONDS else None


def _times(step: int, total_steps: int, every: int) -> int:
    """How often something happens after `step` that happens every so many steps, and at the last one."""
    if every <= 0 or step >= total_steps:
        return 0
    return total_steps // every - step // every + (total_steps % every > 0)


def progress_of(run: RunProgress, total_steps: int | None = None, cadence: Cadence | None = None) -> Progress:
    """What the metadata store has of a run, its floats rounded to four significant digits; None for what is not known.

    `total_steps` and `cadence` are those of the job as it is now, where the caller has it, else those on record.
    """
    step, step_from = step_of(run), run.step_from or 0
    curves = {
        name: {at: value for at, value, _ in run.history.get(name, ()) if value is not None} for name in PACE_METRICS
    }
    # An attempt that has not finished a step has no pace of its own yet.
    pace = None if run.step is None else pace_of(curves, run.step, step_from)
    total = total_steps or run.total_steps
    left = seconds_left(pace, step, total, cadence or Cadence(run.validate_every, run.checkpoint_every))
    return Progress(
        step=step,
        total_steps=total,
        reward=_rounded(Headline.REWARD.of(run.values)),
        accuracy=_rounded(Headline.ACCURACY.of(run.values)),
        entropy=_rounded(Headline.ENTROPY.of(run.values)),
        mean_probability=_rounded(run.values.get(metrics.MEAN_PROBABILITY)),
        response_length=_rounded(Headline.LENGTH.of(run.values)),
        seconds_per_step=None if pace is None or not math.isfinite(pace.step) else float(f"{pace.step:.4g}"),
        eta_seconds=left,
        eta=None if left is None else duration(left),
    )


def step_of(run: RunProgress) -> int | None:
    """The last step of the newest attempt; before its first, the one it resumed from, else the last on
    record."""
    known = run.step if run.step is not None else run.step_from
    return known if known is not None else max((point.step for point in run.values.values()), default=None)


def _rounded(point: "CurvePoint | None") -> float | None:
    """Four significant digits: more would be a status write for a difference that nobody sees."""
    return None if point is None or point.value is None else float(f"{point.value:.4g}")
