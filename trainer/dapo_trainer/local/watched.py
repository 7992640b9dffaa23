"""Which metrics the live view and the summary show."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from dapo_trainer.local.view_model import View

Unit = Literal["plain", "share", "tokens", "nats"]

REWARD: Final = ("dapo/reward/generated", "critic/score/mean")
ACCURACY: Final = ("dapo/accuracy/generated", "dapo/accuracy/trained")
LENGTH: Final = ("response_length/mean",)
ENTROPY: Final = ("actor/entropy",)
ACCURACY_TRAINED: Final = "dapo/accuracy/trained"
LENGTH_MAX: Final = "response_length/max"
LENGTH_CLIPPED: Final = "response_length/clip_ratio"
MEAN_PROBABILITY: Final = "dapo/mean_probability"
GROUPS: Final = ("dapo/groups/all_wrong", "dapo/groups/mixed", "dapo/groups/all_right")
GENERATION_BATCHES: Final = "dapo/generation_batches"
CLIP_HIGH: Final = "dapo/clip_fraction/high"
CLIP_LOW: Final = "dapo/clip_fraction/low"
GRAD_NORM: Final = "actor/grad_norm"
LEARNING_RATE: Final = "actor/lr"
THROUGHPUT: Final = "perf/throughput"
STEP_SECONDS: Final = "perf/time_per_step"
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
