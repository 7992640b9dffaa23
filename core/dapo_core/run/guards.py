"""The ways in which reinforcement learning goes wrong, seen in a run's curves. Pure.

A rule begins to hold after `forSteps` steps in a row beyond its threshold and ends after as many in a row within it,
so that a curve that wavers about the threshold raises one alert, not twenty. Steps without a finite value decide
nothing, except for NonFinite, which counts them. Thresholds and their units: `dapo_core.jobspec.guards`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from dapo_core.jobspec.guards import Guard, GuardAction, GuardRule
from dapo_core.run import metrics

History = Mapping[str, Sequence[tuple[int, float | None, str | None]]]
"""Curves by metric: (step, value, flag) by step; the value is None where the flag says nan, inf or -inf."""
Measures = Iterator[tuple[int, float]]

ENTROPY: Final = (metrics.ENTROPY,)
TRUNCATED: Final = (metrics.TRUNCATED,)
REWARD: Final = (metrics.REWARD_GENERATED, metrics.REWARD_TRAINED)
KEPT_GROUPS: Final = (metrics.GROUPS_MIXED,)
FINITE: Final = (
    metrics.POLICY_LOSS,
    metrics.GRADIENT_NORM,
    metrics.REWARD_GENERATED,
    metrics.REWARD_TRAINED,
    metrics.ENTROPY,
)
BASELINE_STEPS: Final = 20
MEAN_STEPS: Final = 10


@dataclass(frozen=True)
class Alert:
    """A rule that holds, since step `since`, at `step` with `value` in the unit of its threshold."""

    rule: GuardRule
    action: GuardAction
    metric: str
    since: int
    step: int
    value: float
    threshold: float
    message: str


@dataclass(frozen=True)
class Watch:
    """How one rule looks at the curves: which it reads, what it makes of them, and on which side it holds."""

    metrics: tuple[str, ...]
    measure: Callable[[History, tuple[str, ...]], tuple[str, Measures]]
    holds_below: bool
    sentence: str


def evaluate(rules: Sequence[Guard], history: History) -> list[Alert]:
    """The rules that hold at the end of `history`, which is the run's whole one: baselines are of its first steps."""
    return [alert for guard in rules if (alert := _judge(guard, history)) is not None]


def metrics_of(rules: Sequence[Guard]) -> set[str]:
    """The metrics that `rules` look at, so that only these need be kept or read."""
    return {metric for guard in rules for metric in WATCHES[guard.rule].metrics}


def _judge(guard: Guard, history: History) -> Alert | None:
    watch = WATCHES[guard.rule]
    metric, measures = watch.measure(history, watch.metrics)
    since: int | None = None
    row_began = row_length = 0
    row_beyond: bool | None = None
    step, value = 0, 0.0
    for step, value in measures:
        beyond = value < guard.threshold if watch.holds_below else value > guard.threshold
        if beyond != row_beyond:
            row_beyond, row_began, row_length = beyond, step, 0
        row_length += 1
        if row_length >= guard.for_steps:
            since = (since if since is not None else row_began) if beyond else None
    if since is None:
        return None
    message = watch.sentence.format(metric=metric, value=value, threshold=guard.threshold, since=since, step=step)
    return Alert(guard.rule, guard.action, metric, since, step, value, guard.threshold, message)


def _first(history: History, metrics: tuple[str, ...]) -> tuple[str, list[tuple[int, float]]]:
    """The finite values of the first metric that the run has."""
    metric = next((name for name in metrics if history.get(name)), metrics[0])
    return metric, [(step, value) for step, value, _ in history.get(metric, ()) if value is not None]


def _plain(history: History, metrics: tuple[str, ...]) -> tuple[str, Measures]:
    metric, values = _first(history, metrics)
    return metric, iter(values)


def _over_baseline(history: History, metrics: tuple[str, ...]) -> tuple[str, Measures]:
    """Multiples of the median of the run's first steps; none until these are complete."""
    metric, values = _first(history, metrics)
    baseline = median(value for _, value in values[:BASELINE_STEPS]) if len(values) >= BASELINE_STEPS else 0.0
    if baseline <= 0:
        return metric, iter(())
    return metric, ((step, value / baseline) for step, value in values[BASELINE_STEPS:])


def _below_best(history: History, metrics: tuple[str, ...]) -> tuple[str, Measures]:
    """How far each step is below the best mean of some steps before it."""
    metric, values = _first(history, metrics)
    return metric, _drops(values)


def _drops(values: Sequence[tuple[int, float]]) -> Measures:
    window: deque[float] = deque(maxlen=MEAN_STEPS)
    best: float | None = None
    for step, value in values:
        if best is not None:
            yield step, best - value
        window.append(value)
        if len(window) == MEAN_STEPS:
            mean = sum(window) / MEAN_STEPS
            best = mean if best is None else max(best, mean)


def _flags(history: History, metrics: tuple[str, ...]) -> tuple[str, Measures]:
    """How many of the metrics are not finite, by step."""
    counts: dict[int, int] = {}
    guilty: dict[str, int] = {}
    for metric in metrics:
        for step, _, flag in history.get(metric, ()):
            counts[step] = counts.get(step, 0) + (flag is not None)
            if flag is not None:
                guilty[metric] = step
    newest = max(guilty, key=lambda metric: guilty[metric], default=metrics[0])
    return newest, iter([(step, float(count)) for step, count in sorted(counts.items())])


WATCHES: Final[dict[GuardRule, Watch]] = {
    "EntropyCollapse": Watch(
        ENTROPY,
        _plain,
        True,
        "Entropy ({metric}) is {value:.3g} nats per token, below {threshold:g} since step {since}: the policy hardly "
        "explores any more. Raise clipHigh or the temperature.",
    ),
    "EntropyExplosion": Watch(
        ENTROPY,
        _over_baseline,
        False,
        "Entropy ({metric}) is {value:.3g} times that of the run's first steps, above {threshold:g} since step "
        "{since}: the policy becomes noise. Lower the learning rate or clipHigh.",
    ),
    "LengthExplosion": Watch(
        TRUNCATED,
        _plain,
        False,
        "{value:.0%} of responses run into the length limit ({metric}), above {threshold:.0%} since step {since}. "
        "Raise maxResponseTokens or widen the overlong penalty.",
    ),
    "RewardCollapse": Watch(
        REWARD,
        _below_best,
        False,
        "Reward ({metric}) is {value:.3g} below the run's best mean, more than {threshold:g} since step {since}. Go "
        "back to an earlier checkpoint with a lower learning rate.",
    ),
    "SamplingStarvation": Watch(
        KEPT_GROUPS,
        _plain,
        True,
        "{value:.0%} of generated groups teach something ({metric}), below {threshold:.0%} since step {since}: the "
        "prompts are too easy or too hard.",
    ),
    "RolloutMismatch": Watch(
        (metrics.MISMATCH,),
        _plain,
        False,
        "Rollout and trainer differ by {value:.3g} in a token's mean probability ({metric}), more than {threshold:g} "
        "since step {since}: the gradient is of another policy. Set importanceCorrection, or look for a dtype or "
        "weights that only one of them has.",
    ),
    "NonFinite": Watch(
        FINITE,
        _flags,
        False,
        "{metric} is not finite at step {step}: lower the learning rate or the gradient clip, and resume from the "
        "checkpoint before.",
    ),
}
