"""Which metrics the live view and the summary show."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from dapo_core.run import metrics
from dapo_trainer.local.view_model import View

Unit = Literal["plain", "share", "tokens", "nats"]

REWARD: Final = (metrics.REWARD_GENERATED, metrics.REWARD_TRAINED)
ACCURACY: Final = (metrics.ACCURACY_GENERATED, metrics.ACCURACY_TRAINED)
LENGTH: Final = (metrics.LENGTH_MEAN,)
ENTROPY: Final = (metrics.ENTROPY,)
ACCURACY_TRAINED: Final = metrics.ACCURACY_TRAINED
LENGTH_MAX: Final = metrics.LENGTH_MAX
LENGTH_CLIPPED: Final = metrics.TRUNCATED
MEAN_PROBABILITY: Final = metrics.MEAN_PROBABILITY
GROUPS: Final = (metrics.GROUPS_ALL_WRONG, metrics.GROUPS_MIXED, metrics.GROUPS_ALL_RIGHT)
GENERATION_BATCHES: Final = metrics.GENERATION_BATCHES
CLIP_HIGH: Final = metrics.CLIP_FRACTION_HIGH
CLIP_LOW: Final = metrics.CLIP_FRACTION_LOW
GRAD_NORM: Final = metrics.GRADIENT_NORM
LEARNING_RATE: Final = metrics.LEARNING_RATE
THROUGHPUT: Final = metrics.THROUGHPUT
STEP_SECONDS: Final = metrics.STEP_SECONDS
# What a phase is called and where its seconds are, in the order of a step.
TIMINGS: Final = {
    "generate": ("timing_s/gen",),
    "score": ("timing_s/reward", "timing_s/old_log_prob", "timing_s/adv"),
    "update": ("timing_s/update_actor",),
    "sync": ("timing_s/update_weights",),
    "validate": ("timing_s/testing",),
    "checkpoint": ("timing_s/save_checkpoint",),
}
_MEAN_AT = re.compile(r"^val-core/(?P<name>.+)/acc/mean@(?P<k>\d+)$")


@dataclass(frozen=True)
class Validation:
    """The metric of one validation set's mean@k."""

    metric: str
    name: str
    samples: int

    @property
    def title(self) -> str:
        return f"mean@{self.samples}"


def first_of(view: View, metrics: tuple[str, ...]) -> str:
    """The first of `metrics` that the run has; the first of all while it has none."""
    return next((metric for metric in metrics if view.curves.get(metric)), metrics[0])


def validations(view: View) -> list[Validation]:
    """The validation sets of the run, by name, each with its largest k."""
    found: dict[str, Validation] = {}
    for metric in view.curves:
        if match := _MEAN_AT.match(metric):
            one = Validation(metric, match["name"], int(match["k"]))
            found[one.name] = max(one, found.get(one.name, one), key=lambda v: v.samples)
    return [found[name] for name in sorted(found)]


def phase_seconds(view: View, phase: str) -> float | None:
    """Seconds of one phase in the last step."""
    curves = [view.curves.get(metric, {}) for metric in TIMINGS[phase]]
    values = [curve[view.step] for curve in curves if view.step is not None and view.step in curve]
    return sum(values) if values else None


def total_phase_seconds(view: View) -> dict[str, float]:
    """Seconds of each phase over all steps, of phases that took any."""
    totals = {phase: sum(sum(view.curves.get(m, {}).values()) for m in TIMINGS[phase]) for phase in TIMINGS}
    return {phase: seconds for phase, seconds in totals.items() if seconds > 0}
