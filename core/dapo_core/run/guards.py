"""The guards of a run: what each watches in the curves, when it holds, what that means and what to do. Pure.

A rule begins to hold after `forSteps` steps in a row beyond its threshold and ends after as many in a row within it,
so that a curve that wavers around the threshold raises one alert, not twenty. Steps without a finite value decide
nothing, except for NonFinite, which counts them. Default thresholds, with
their units, are fields of the job: `dapo_core.jobspec.guards`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from dapo_core.jobspec.guards import Guard, GuardAction, GuardRule
from dapo_core.run import metrics
from dapo_core.run.metrics import Panel

History = Mapping[str, Sequence[tuple[int, float | None, str | None]]]
"""Curves by metric: (step, value, flag) by step; the value is None where the flag says nan, inf or -inf."""
Measures = Iterator[tuple[int, float]]

ENTROPY: Final = (metrics.ENTROPY,)
TRUNCATED: Final = (metrics.TRUNCATED,)
REWARD: Final = metrics.Headline.REWARD.value
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
    """A rule that holds, since step `since`, at `step` with `value` in the unit of its threshold. `message` says so and
    what to do about it."""

    rule: GuardRule
    action: GuardAction
    metric: str
    since: int
    step: int
    value: float
    threshold: float
    message: str


@dataclass(frozen=True)
class HealthRule:
    """What a guard watches and what to do about it.

    `meaning` and `remedy` are Markdown sentences; `topic` is the panel whose help explains it. `measure` turns the
    curves of `metrics` into what is compared with the threshold, and `holds_below` says on which side the rule holds.
    `sentence` is the alert's, to be filled in.
    """

    title: str
    meaning: str
    remedy: str
    topic: Panel
    metrics: tuple[str, ...]
    measure: Callable[[History, tuple[str, ...]], tuple[str, Measures]]
    holds_below: bool
    sentence: str


def evaluate(rules: Sequence[Guard], history: History) -> list[Alert]:
    """The rules that hold at the end of `history`, which must have the run's first steps: baselines are of these."""
    return [alert for guard in rules if (alert := _judge(guard, history)) is not None]


def metrics_of(rules: Sequence[Guard]) -> set[str]:
    """The metrics that `rules` need; no others have to be kept or read."""
    return {metric for guard in rules for metric in HEALTH_RULES[guard.rule].metrics}


def _judge(guard: Guard, history: History) -> Alert | None:
    rule = HEALTH_RULES[guard.rule]
    metric, measures = rule.measure(history, rule.metrics)
    since: int | None = None
    row_began = row_length = 0
    row_beyond: bool | None = None
    step, value = 0, 0.0
    for step, value in measures:
        beyond = value < guard.threshold if rule.holds_below else value > guard.threshold
        if beyond != row_beyond:
            row_beyond, row_began, row_length = beyond, step, 0
        row_length += 1
        if row_length >= guard.for_steps:
            since = (since if since is not None else row_began) if beyond else None
    if since is None:
        return None
    sentence = rule.sentence.format(metric=metric, value=value, threshold=guard.threshold, since=since, step=step)
    message = f"{sentence} {rule.remedy.replace('`', '')}"
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


HEALTH_RULES: Final[Mapping[GuardRule, HealthRule]] = {
    "EntropyCollapse": HealthRule(
        title="Entropy collapse",
        meaning="Entropy stays below a threshold: the policy hardly explores any more.",
        remedy="Raise `algorithm.clipHigh` or `batch.temperature`.",
        topic=Panel.ENTROPY,
        metrics=ENTROPY,
        measure=_plain,
        holds_below=True,
        sentence="Entropy ({metric}) is {value:.3g} nats per token, below {threshold:g} since step {since}.",
    ),
    "EntropyExplosion": HealthRule(
        title="Entropy explosion",
        meaning="Entropy stays above a multiple of that of the run's first steps: the policy turns into noise.",
        remedy="Lower `optimizer.learningRate` or `algorithm.clipHigh`, and resume from a checkpoint before it.",
        topic=Panel.ENTROPY,
        metrics=ENTROPY,
        measure=_over_baseline,
        holds_below=False,
        sentence="Entropy ({metric}) is {value:.3g} times that of the run's first steps, above {threshold:g} since "
        "step {since}.",
    ),
    "LengthExplosion": HealthRule(
        title="Length explosion",
        meaning="More than a share of the responses is truncated at the length limit.",
        remedy="Raise `batch.maxResponseTokens`, or widen `algorithm.overlong.penalty`.",
        topic=Panel.TRUNCATED,
        metrics=TRUNCATED,
        measure=_plain,
        holds_below=False,
        sentence="{value:.0%} of responses are truncated at the length limit ({metric}), above {threshold:.0%} since "
        "step {since}.",
    ),
    "RewardCollapse": HealthRule(
        title="Reward collapse",
        meaning="Reward stays below the run's best mean by more than a threshold.",
        remedy="Resume from an earlier checkpoint with a lower `optimizer.learningRate`.",
        topic=Panel.REWARD,
        metrics=REWARD,
        measure=_below_best,
        holds_below=False,
        sentence="Reward ({metric}) is {value:.3g} below the run's best mean, more than {threshold:g} since step "
        "{since}.",
    ),
    "SamplingStarvation": HealthRule(
        title="Sampling starvation",
        meaning="Too few of the generated groups are mixed, and only mixed groups have an advantage to learn from.",
        remedy="Choose prompts that the policy solves sometimes: easier ones if all are wrong, else harder ones.",
        topic=Panel.GROUPS,
        metrics=KEPT_GROUPS,
        measure=_plain,
        holds_below=True,
        sentence="{value:.0%} of generated groups are mixed ({metric}), below {threshold:.0%} since step {since}.",
    ),
    "RolloutMismatch": HealthRule(
        title="Rollout mismatch",
        meaning="Rollout and trainer give the sampled tokens different probabilities: the gradient is computed for a "
        "different policy than the one that sampled.",
        remedy="Set `algorithm.importanceCorrection`, or look for a dtype or weights that only one of the two has.",
        topic=Panel.MISMATCH,
        metrics=(metrics.MISMATCH,),
        measure=_plain,
        holds_below=False,
        sentence="Rollout and trainer differ by {value:.3g} in a token's mean probability ({metric}), more than "
        "{threshold:g} since step {since}.",
    ),
    "NonFinite": HealthRule(
        title="Non-finite values",
        meaning="A loss, reward, entropy or gradient norm is NaN or infinite.",
        remedy="Lower `optimizer.learningRate` or `optimizer.gradientClip`, and resume from the checkpoint before it.",
        topic=Panel.GRADIENT,
        metrics=FINITE,
        measure=_flags,
        holds_below=False,
        sentence="{metric} is not finite at step {step}.",
    ),
}
"""The catalogue of guards; thresholds and their defaults are fields of the job (`dapo_core.jobspec.guards`)."""


def help_topic(rule: str) -> str:
    """The part of the help page about a rule; `alerts` for a rule that this version does not know."""
    return next((known.topic.anchor for name, known in HEALTH_RULES.items() if name == rule), "alerts")
