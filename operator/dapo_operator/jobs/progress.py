"""A run's rows of the metadata store as its status shows them. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.jobspec.training import DEFAULT_STEPS
from dapo_core.run import metrics
from dapo_core.run.guards import Alert, evaluate
from dapo_core.run.status import Progress
from dapo_operator.jobs.words import eta_text

if TYPE_CHECKING:
    from dapo_core.db import CurvePoint, RunProgress

SPEED: Final = metrics.STEP_SECONDS
SPEED_STEPS: Final = 5
_REWARD: Final = (metrics.REWARD_GENERATED, metrics.REWARD_TRAINED)
_ACCURACY: Final = (metrics.ACCURACY_GENERATED, metrics.ACCURACY_TRAINED)
SHOWN: Final = (*_REWARD, *_ACCURACY, metrics.ENTROPY, metrics.MEAN_PROBABILITY, metrics.LENGTH_MEAN, SPEED)


def progress_of(run: "RunProgress", spec: DAPOJobSpec) -> Progress:
    """The run's last values, rounded; None for those it has not."""
    speed = _speed(run)
    # An attempt that has not finished a step yet is where the one before it was.
    step = run.step if run.step is not None else max((point.step for point in run.values.values()), default=None)
    steps = spec.schedule.steps or (None if spec.schedule.epochs else DEFAULT_STEPS)
    left = max(0, round((steps - step) * speed)) if steps and step is not None and speed else None
    return Progress(
        step=step,
        total_steps=steps,
        reward=_value(run.values, _REWARD),
        accuracy=_value(run.values, _ACCURACY),
        entropy=_value(run.values, (metrics.ENTROPY,)),
        mean_probability=_value(run.values, (metrics.MEAN_PROBABILITY,)),
        response_length=_value(run.values, (metrics.LENGTH_MEAN,)),
        seconds_per_step=rounded(speed),
        eta_seconds=left,
        eta=None if left is None else eta_text(left),
    )


def alerts_of(run: "RunProgress", spec: DAPOJobSpec) -> tuple[Alert, ...]:
    """The guards that hold at the run's last step."""
    return tuple(evaluate(spec.guards, run.history))


def rounded(value: float | None) -> float | None:
    """Four significant digits: more would be a status write for nothing that anyone can see."""
    return None if value is None else float(f"{value:.4g}")


def _value(values: "Mapping[str, CurvePoint]", names: Sequence[str]) -> float | None:
    point = next((values[name] for name in names if name in values), None)
    return rounded(point.value) if point is not None else None


def _speed(run: "RunProgress") -> float | None:
    known = [value for _, value, _ in run.history.get(SPEED, ()) if value is not None]
    return median(known[-SPEED_STEPS:]) if known else None
