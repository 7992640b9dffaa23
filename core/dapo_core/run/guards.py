"""The guards of a run: what each watches in the curves, when it holds, what that means and what to do. Pure.

A rule begins to hold after `forSteps` steps in a row beyond its threshold and ends after as many in a row within it,
so that a curve that wavers around the threshold raises one alert, not twenty. Steps without a finite value decide
nothing, except for NonFinite, which counts them. Default thresholds, with
their units, are fields of the job: `dapo_core.jobspec.guard_fields`.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Final

from dapo_core.jobspec.guard_fields import Guard, GuardAction, GuardRule
from dapo_core.run import metrics
from dapo_core.run.guard_measures import BelowBest, Measure, Multiple, Plain, Streak
from dapo_core.run.metrics import Panel

History = Mapping[str, Sequence[tuple[int, float | None, str | None]]]
"""Curves by metric: (step, value, flag) by step; the value is None where the flag says nan, inf or -inf."""
Values = Mapping[str, tuple[float | None, str | None]]
"""The values of one step by metric: (value, flag)."""

ENTROPY: Final = (metrics.ENTROPY,)
TRUNCATED: Final = (metrics.TRUNCATED_GENERATED, metrics.TRUNCATED)
REWARD: Final = metrics.Headline.REWARD.value
KEPT_GROUPS: Final = (metrics.GROUPS_SPREAD, metrics.GROUPS_MIXED)
FINITE: Final = (
    metrics.POLICY_LOSS,
    metrics.GRADIENT_NORM,
    metrics.REWARD_GENERATED,
    metrics.REWARD_TRAINED,
    metrics.ENTROPY,
)


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

    `meaning` and `remedy` are Markdown sentences; `topic` is the panel whose help explains it. A `measure` turns the
    curve of the first of `metrics` that the run has into what is compared with the threshold; None: the number of
    metrics that are not finite is. `holds_below` says on which side the rule holds. `sentence` is the alert's, to be
    filled in.
    """

    title: str
    meaning: str
    remedy: str
    topic: Panel
    metrics: tuple[str, ...]
    measure: Callable[[], Measure] | None
    holds_below: bool
    sentence: str


class GuardJudge:
    """The rules of a run, judged step by step: what it keeps does not grow with the run."""

    def __init__(self, rules: Sequence[Guard]) -> None:
        self._guards = [_NonFinite(guard) if _rule(guard).measure is None else _Curves(guard) for guard in rules]
        # The newest step: another read of it may add metrics.
        self._newest: int | None = None
        self._values: dict[str, tuple[float | None, str | None]] = {}

    @property
    def newest(self) -> int | None:
        """The last step that was added; None before the first."""
        return self._newest

    def add(self, history: History) -> None:
        """Continue the curves; of the steps before `newest` all values must have been added."""
        steps: dict[int, dict[str, tuple[float | None, str | None]]] = {}
        for metric, curve in history.items():
            for step, value, flag in curve:
                steps.setdefault(step, {})[metric] = (value, flag)
        for step in sorted(steps):
            if step != self._newest:
                self._close()
                self._newest = step
            self._values |= steps[step]

    def alerts(self) -> list[Alert]:
        """The rules that hold now."""
        guards = [guard.copy() for guard in self._guards]
        if self._newest is not None:
            for guard in guards:
                guard.add(self._newest, self._values)
        return [alert for guard in guards if (alert := guard.alert()) is not None]

    def _close(self) -> None:
        if self._newest is not None:
            for guard in self._guards:
                guard.add(self._newest, self._values)
        self._values = {}


def evaluate(rules: Sequence[Guard], history: History) -> list[Alert]:
    """The rules that hold at the end of `history`, the whole one of a run."""
    judge = GuardJudge(rules)
    judge.add(history)
    return judge.alerts()


def metrics_of(rules: Sequence[Guard]) -> set[str]:
    """The metrics that `rules` need; no others have to be kept or read."""
    return {metric for guard in rules for metric in _rule(guard).metrics}


def _rule(guard: Guard) -> "HealthRule":
    return HEALTH_RULES[guard.rule]


@dataclass
class _Curves:
    """A guard over the first of its metrics that the run has; which that is may turn out late."""

    guard: Guard
    tracks: dict[str, tuple[Measure, Streak]] = field(default_factory=dict)

    def copy(self) -> "_Curves":
        return _Curves(self.guard, deepcopy(self.tracks))

    def add(self, step: int, values: Values) -> None:
        rule = _rule(self.guard)
        for metric in rule.metrics:
            if metric not in values or rule.measure is None:
                continue
            measure, streak = self.tracks.setdefault(metric, (rule.measure(), Streak()))
            value = values[metric][0]
            measured = None if value is None else measure.add(value)
            if measured is not None:
                streak.add(step, measured, _beyond(self.guard, measured), self.guard.for_steps)

    def alert(self) -> Alert | None:
        metrics = _rule(self.guard).metrics
        metric = next((name for name in metrics if name in self.tracks), None)
        return None if metric is None else _alert(self.guard, metric, self.tracks[metric][1])


@dataclass
class _NonFinite:
    """A guard over the number of its metrics that are not finite."""

    guard: Guard
    streak: Streak = field(default_factory=Streak)
    guilty: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "_NonFinite":
        return _NonFinite(self.guard, replace(self.streak), dict(self.guilty))

    def add(self, step: int, values: Values) -> None:
        flags = {metric: values[metric][1] for metric in _rule(self.guard).metrics if metric in values}
        if not flags:
            return
        self.guilty |= {metric: step for metric, flag in flags.items() if flag is not None}
        count = float(sum(flag is not None for flag in flags.values()))
        self.streak.add(step, count, _beyond(self.guard, count), self.guard.for_steps)

    def alert(self) -> Alert | None:
        metrics = _rule(self.guard).metrics
        newest = max((name for name in metrics if name in self.guilty), key=self.guilty.__getitem__, default=metrics[0])
        return _alert(self.guard, newest, self.streak)


def _beyond(guard: Guard, value: float) -> bool:
    return value < guard.threshold if _rule(guard).holds_below else value > guard.threshold


def _alert(guard: Guard, metric: str, streak: Streak) -> Alert | None:
    rule, since = _rule(guard), streak.since
    if since is None:
        return None
    sentence = rule.sentence.format(
        metric=metric, value=streak.value, threshold=guard.threshold, since=since, step=streak.step
    )
    message = f"{sentence} {rule.remedy.replace('`', '')}"
    return Alert(guard.rule, guard.action, metric, since, streak.step, streak.value, guard.threshold, message)


HEALTH_RULES: Final[Mapping[GuardRule, HealthRule]] = {
    "EntropyCollapse": HealthRule(
        title="Entropy collapse",
        meaning="Entropy stays below a threshold: the policy hardly explores any more.",
        remedy="Raise `algorithm.clipHigh` or `batch.temperature`.",
        topic=Panel.ENTROPY,
        metrics=ENTROPY,
        measure=Plain,
        holds_below=True,
        sentence="Entropy ({metric}) is {value:.3g} nats per token, below {threshold:g} since step {since}.",
    ),
    "EntropyExplosion": HealthRule(
        title="Entropy explosion",
        meaning="Entropy stays above a multiple of that of the run's first steps: the policy turns into noise.",
        remedy="Lower `optimizer.learningRate` or `algorithm.clipHigh`, and resume from a checkpoint before it.",
        topic=Panel.ENTROPY,
        metrics=ENTROPY,
        measure=Multiple,
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
        measure=Plain,
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
        measure=BelowBest,
        holds_below=False,
        sentence="Reward ({metric}) is {value:.3g} below the run's best mean, more than {threshold:g} since step "
        "{since}.",
    ),
    "SamplingStarvation": HealthRule(
        title="Sampling starvation",
        meaning="Too few of the generated groups are mixed (with `filterBy: spread`, of different scores), and only "
        "these have an advantage to learn from.",
        remedy="Choose prompts that the policy solves sometimes: easier ones if all are wrong, else harder ones.",
        topic=Panel.GROUPS,
        metrics=KEPT_GROUPS,
        measure=Plain,
        holds_below=True,
        sentence="{value:.0%} of generated groups have an advantage ({metric}), below {threshold:.0%} "
        "since step {since}.",
    ),
    "RolloutMismatch": HealthRule(
        title="Rollout mismatch",
        meaning="Rollout and trainer give the sampled tokens different probabilities: the gradient is computed for a "
        "different policy than the one that sampled.",
        remedy="Set `algorithm.importanceCorrection`, or look for a dtype or weights that only one of the two has.",
        topic=Panel.MISMATCH,
        metrics=(metrics.MISMATCH,),
        measure=Plain,
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
        measure=None,
        holds_below=False,
        sentence="{metric} is not finite at step {step}.",
    ),
}
"""The catalogue of guards; thresholds and their defaults are fields of the job (`dapo_core.jobspec.guard_fields`)."""


def help_topic(rule: str) -> str:
    """The part of the help page about a rule; `alerts` for a rule that this version does not know."""
    return next((known.topic.anchor for name, known in HEALTH_RULES.items() if name == rule), "alerts")
