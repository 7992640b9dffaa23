"""The curves of a run: the name, unit, title, panel and direction of each, and what "reward" and "accuracy" mean.

Names are verl's where verl has one; ours begin with `dapo/`. Terminal, pages and docs/metrics.md render this catalogue.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Literal, TypeVar

Unit = Literal[
    "",
    "share",
    "probability",
    "tokens",
    "tokens/s",
    "nats",
    "seconds",
    "prompts",
    "batches",
    "checks",
    "versions",
    "GB",
]
Better = Literal["higher", "lower"]
Value = TypeVar("Value")


class Panel(StrEnum):
    """Charts of a run's page in their order, which is that of the paper's own monitoring. The value is the title."""

    LENGTH = "Response length"
    REWARD = "Reward"
    ENTROPY = "Entropy and mean probability"
    ACCURACY = "Accuracy"
    GROUPS = "Group outcomes"
    SAMPLING = "Generation batches"
    GRADIENT = "Gradient norm"
    CLIP = "Clipped tokens"
    KL = "KL to the policy that sampled"
    MISMATCH = "Trainer against rollout"
    SPEED = "Seconds per phase"
    HARDWARE = "Memory and utilization"
    TRUNCATED = "Truncated responses and failed checks"
    LOSS = "Loss and learning rate"

    @property
    def anchor(self) -> str:
        """The panel's key in URLs and on the help page."""
        return self.name.lower()


@dataclass(frozen=True)
class Metric:
    """One curve. `title` is short, for use within its panel; `panel` is None for curves that the run's page draws only
    on request; `better` is None where neither direction is better by itself."""

    name: str
    title: str
    unit: Unit = ""
    panel: Panel | None = None
    better: Better | None = None


@dataclass(frozen=True)
class Family:
    """Metrics whose names share a pattern: `shown` writes it with the variable parts in braces."""

    shown: str
    meaning: str
    unit: Unit = ""

    def has(self, name: str) -> bool:
        """Whether `name` belongs to this family."""
        pattern = ".+".join(re.escape(part) for part in re.split(r"\{\w+\}", self.shown))
        return re.fullmatch(pattern, name) is not None


REWARD_GENERATED: Final = "dapo/reward/generated"
REWARD_TRAINED: Final = "critic/score/mean"
ACCURACY_GENERATED: Final = "dapo/accuracy/generated"
ACCURACY_TRAINED: Final = "dapo/accuracy/trained"
LENGTH_MEAN: Final = "response_length/mean"
LENGTH_MAX: Final = "response_length/max"
TRUNCATED: Final = "response_length/clip_ratio"
ENTROPY: Final = "actor/entropy"
NLL_GENERATED: Final = "dapo/nll/generated"
MEAN_PROBABILITY: Final = "dapo/mean_probability"
GROUPS_ALL_WRONG: Final = "dapo/groups/all_wrong"
GROUPS_MIXED: Final = "dapo/groups/mixed"
GROUPS_ALL_RIGHT: Final = "dapo/groups/all_right"
GROUPS_SPREAD: Final = "dapo/groups/spread"
GROUPS_LOST: Final = "dapo/groups/lost"
GROUPS_GENERATED: Final = "dapo/groups/generated"
GROUPS_CARRIED: Final = "dapo/groups/carried"
GROUPS_DROPPED: Final = "dapo/groups/dropped"
GROUPS_STALE: Final = "dapo/groups/stale"
STALE: Final = "dapo/stale"
GROUPS_TRAINED: Final = "dapo/groups/trained"
GENERATION_BATCHES: Final = "dapo/generation_batches"
TOKENS_GENERATED: Final = "dapo/tokens/generated"
TOKENS_TRAINED: Final = "dapo/tokens/trained"
TOKENS_PROCESSED: Final = "perf/total_num_tokens"
LENGTH_GENERATED: Final = "dapo/length/generated"
TRUNCATED_GENERATED: Final = "dapo/truncated/generated"
REWARD_FAILURES: Final = "dapo/reward_failures"
POLICY_LOSS: Final = "actor/pg_loss"
GRADIENT_NORM: Final = "actor/grad_norm"
LEARNING_RATE: Final = "actor/lr"
CLIP_FRACTION_HIGH: Final = "actor/clip_fraction_high"
CLIP_FRACTION_LOW: Final = "actor/clip_fraction_low"
KL: Final = "actor/ppo_kl"
MISMATCH: Final = "training/rollout_probs_diff_mean"
STALENESS: Final = "training/off_policy/trajectory_staleness/mean"
THROUGHPUT: Final = "perf/throughput"
STEP_SECONDS: Final = "perf/time_per_step"
VALIDATION_SECONDS: Final = "timing_s/testing"
CHECKPOINT_SECONDS: Final = "timing_s/save_checkpoint"
STORE_LAG: Final = "dapo/store_lag_seconds"
ENGINES_SERVING: Final = "dapo/engines/serving"
ENGINES_LOST: Final = "dapo/engines/lost"
ENGINES_JOINED: Final = "dapo/engines/joined"
ENGINES_DRAINED: Final = "dapo/engines/drained"
ENGINES_WAITED: Final = "dapo/engines/waited"
RESPONSES_CONTINUED: Final = "dapo/responses/continued"
RESPONSES_RESTARTED: Final = "dapo/responses/restarted"
GPU_MEMORY: Final = "actor/perf/max_memory_allocated_gb"
GPU_MEMORY_RESERVED: Final = "actor/perf/max_memory_reserved_gb"
HOST_MEMORY: Final = "actor/perf/cpu_memory_used_gb"
MFU: Final = "perf/mfu/actor"

_ALL: Final = (
    Metric(LENGTH_MEAN, "mean", "tokens", Panel.LENGTH),
    Metric(LENGTH_MAX, "longest", "tokens", Panel.LENGTH),
    Metric(REWARD_GENERATED, "before filtering", "", Panel.REWARD, "higher"),
    Metric(REWARD_TRAINED, "after filtering", "", Panel.REWARD, "higher"),
    Metric(ENTROPY, "entropy per token", "nats", Panel.ENTROPY),
    Metric(MEAN_PROBABILITY, "mean probability", "probability", Panel.ENTROPY),
    Metric(ACCURACY_GENERATED, "training", "share", Panel.ACCURACY, "higher"),
    Metric(ACCURACY_TRAINED, "training, filtered", "share", Panel.ACCURACY, "higher"),
    Metric(GROUPS_ALL_WRONG, "all wrong", "share", Panel.GROUPS),
    Metric(GROUPS_MIXED, "mixed", "share", Panel.GROUPS, "higher"),
    Metric(GROUPS_ALL_RIGHT, "all right", "share", Panel.GROUPS),
    Metric(GROUPS_LOST, "lost to a fault", "share", Panel.GROUPS, "lower"),
    Metric(GENERATION_BATCHES, "batches", "batches", Panel.SAMPLING, "lower"),
    Metric(GROUPS_GENERATED, "prompts generated", "prompts", Panel.SAMPLING),
    Metric(GROUPS_CARRIED, "carried to the next step", "prompts", Panel.SAMPLING),
    Metric(GROUPS_DROPPED, "dropped as surplus", "prompts", Panel.SAMPLING, "lower"),
    Metric(GROUPS_STALE, "dropped as stale", "prompts", Panel.SAMPLING, "lower"),
    Metric(GRADIENT_NORM, "gradient norm", "", Panel.GRADIENT),
    Metric(CLIP_FRACTION_HIGH, "above", "share", Panel.CLIP),
    Metric(CLIP_FRACTION_LOW, "below", "share", Panel.CLIP),
    Metric(KL, "approximate KL", "nats", Panel.KL),
    Metric(MISMATCH, "difference in probability", "probability", Panel.MISMATCH, "lower"),
    Metric(STALENESS, "policy versions behind", "versions", Panel.MISMATCH, "lower"),
    Metric(STEP_SECONDS, "step time", "seconds", Panel.SPEED, "lower"),
    Metric(THROUGHPUT, "tokens/s per accelerator", "tokens/s", Panel.SPEED, "higher"),
    Metric(GPU_MEMORY, "accelerator", "GB", Panel.HARDWARE),
    Metric(GPU_MEMORY_RESERVED, "accelerator, reserved", "GB", Panel.HARDWARE),
    Metric(HOST_MEMORY, "host", "GB", Panel.HARDWARE),
    Metric(MFU, "MFU", "share", Panel.HARDWARE, "higher"),
    Metric(TRUNCATED, "responses truncated at the limit", "share", Panel.TRUNCATED),
    Metric(REWARD_FAILURES, "failed checks", "", Panel.TRUNCATED, "lower"),
    Metric(POLICY_LOSS, "policy loss", "", Panel.LOSS),
    Metric(LEARNING_RATE, "learning rate", "", Panel.LOSS),
    Metric(GROUPS_TRAINED, "prompts trained on", "prompts"),
    Metric(GROUPS_SPREAD, "groups of different scores, filterBy spread", "share", None, "higher"),
    Metric(STALE, "responses of an earlier step, Colocated", "share", None, "lower"),
    Metric(NLL_GENERATED, "mean negative log-probability of the sampled tokens, before filtering", "nats"),
    Metric(LENGTH_GENERATED, "mean response length before filtering", "tokens"),
    Metric(TRUNCATED_GENERATED, "responses truncated, before filtering", "share"),
    Metric(TOKENS_GENERATED, "response tokens generated", "tokens"),
    Metric(TOKENS_TRAINED, "response tokens trained on", "tokens"),
    Metric(TOKENS_PROCESSED, "prompt and response tokens of a step", "tokens"),
    Metric(ENGINES_SERVING, "rollout engines that serve at the end of the step, Separated"),
    Metric(ENGINES_LOST, "rollout engines lost since the step before, Separated", "", None, "lower"),
    Metric(ENGINES_JOINED, "rollout engines that joined since the step before, Separated"),
    Metric(ENGINES_DRAINED, "rollout engines that handed over and left since the step before, Separated"),
    Metric(ENGINES_WAITED, "waiting without any rollout engine, Separated", "seconds", None, "lower"),
    Metric(RESPONSES_CONTINUED, "responses whose engine left, continued by another from their tokens, Separated"),
    Metric(RESPONSES_RESTARTED, "responses whose engine left, begun again by another, Separated", "", None, "lower"),
    Metric(STORE_LAG, "metadata store behind training", "seconds", None, "lower"),
)
METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _ALL}
"""The catalogue by name."""

FAMILIES: Final = (
    Family("dapo/rewards/{name}", "score of each of several rewards before its weight, of all responses generated"),
    Family("val-core/{set}/acc/{statistic}", "validation: mean@k, best@k/mean and maj@k/mean over the set", "share"),
    Family("val-aux/{set}/{figure}", "validation: standard error of mean@k, response length, share truncated"),
    Family("timing_s/{phase}", "seconds of each phase of a step; `timing_s/step` is all but the validation", "seconds"),
    Family("timing_per_token_ms/{phase}", "milliseconds per token of each phase"),
    Family("actor/{figure}", "other figures of the policy's updates, from verl"),
    Family("critic/{quantity}/{statistic}", "scores, rewards, advantages and returns of the responses trained on"),
    Family("prompt_length/{statistic}", "tokens of the prompts trained on"),
    Family("response_length/{statistic}", "tokens of the responses trained on"),
    Family("response_length_non_aborted/{statistic}", "the same without aborted responses"),
    Family("response/{figure}", "share of aborted responses"),
    Family("num_turns/{statistic}", "turns of a response; always 2 here"),
    Family("global_seqlen/{statistic}", "tokens per rank, before and after balancing"),
    Family("rollout_corr/{figure}", "trainer against rollout log-probabilities, and importance weights"),
    Family("training/{figure}", "step, epoch, staleness, and trainer against rollout probabilities"),
    Family("perf/{figure}", "other figures of speed and memory, from verl"),
    Family("separate_async/{figure}", "when `topology.mode: Separated` switches between training and generation"),
)
"""Metrics that a run has besides the catalogue's, by the pattern of their names."""


@dataclass(frozen=True)
class Phase:
    """A part of a step, whose seconds are `timing_s/{key}`. `stage` is its part of the live view's chain."""

    key: str
    title: str
    stage: str

    @property
    def metric(self) -> str:
        """The metric that has its seconds."""
        return f"timing_s/{self.key}"


PHASES: Final = (
    Phase("gen", "generate", "generate"),
    Phase("reward", "score", "score"),
    Phase("old_log_prob", "old log-probabilities", "score"),
    Phase("ref", "reference", "score"),
    Phase("adv", "advantages", "score"),
    Phase("update_actor", "update", "update"),
    Phase("update_weights", "send weights", "sync"),
    Phase("testing", "validate", "validate"),
    Phase("save_checkpoint", "checkpoint", "checkpoint"),
)
"""The parts of a step that are not parts of one another, in the order in which they are shown."""
STAGES: Final = tuple(dict.fromkeys(phase.stage for phase in PHASES))


class Headline(Enum):
    """What every surface shows of a run by one word, and the metrics that hold it: the first that the run has."""

    REWARD = (REWARD_GENERATED, REWARD_TRAINED)
    ACCURACY = (ACCURACY_GENERATED, ACCURACY_TRAINED)
    LENGTH = (LENGTH_MEAN,)
    ENTROPY = (ENTROPY,)

    @property
    def title(self) -> str:
        """The word itself."""
        return self.name.capitalize()

    def metric(self, names: Container[str]) -> str:
        """The first of its metrics that is among `names`, else the first of all."""
        own: tuple[str, ...] = self.value
        return next((name for name in own if name in names), own[0])

    def of(self, values: Mapping[str, Value]) -> Value | None:
        """What `values` has of it; None when it has none of its metrics."""
        return next((values[name] for name in self.value if name in values), None)


HEADLINES: Final = tuple(name for headline in Headline for name in headline.value)
"""All metrics that the headlines may need."""


@dataclass(frozen=True)
class Validation:
    """A validation metric's name, taken apart. `statistic` is mean, best or maj."""

    set_name: str
    statistic: str
    samples: int

    @property
    def title(self) -> str:
        """`mean@8`."""
        return f"{self.statistic}@{self.samples}"

    @property
    def error(self) -> str:
        """The metric that has the standard error of a mean."""
        return f"val-aux/{self.set_name}/acc/{self.title}/standard_error"


_VALIDATION: Final = re.compile(r"val-core/(?P<set>.+)/acc/(?P<statistic>mean|best|maj)@(?P<k>\d+)(/mean)?")


def validation_of(name: str) -> Validation | None:
    """The validation that the metric `name` reports; None when it reports something else."""
    found = _VALIDATION.fullmatch(name)
    return None if found is None else Validation(found["set"], found["statistic"], int(found["k"]))


def validation_means(names: Iterable[str]) -> dict[str, Validation]:
    """The mean@k metrics among `names` by metric name, one a validation set (its largest k), ordered by set."""
    largest: dict[str, tuple[int, str]] = {}
    for name in names:
        found = validation_of(name)
        if found is not None and found.statistic == "mean":
            largest[found.set_name] = max((found.samples, name), largest.get(found.set_name, (0, "")))
    return {name: Validation(set_name, "mean", k) for set_name, (k, name) in sorted(largest.items())}


_REWARD: Final = re.compile(r"dapo/rewards/(?P<name>.+)")


def reward_named(name: str) -> str:
    """The metric with the mean score of the reward `name`, of a job with several."""
    return f"dapo/rewards/{name}"


def reward_of(name: str) -> str | None:
    """The reward whose mean score the metric `name` is; None for any other metric."""
    found = _REWARD.fullmatch(name)
    return None if found is None else found["name"]


def unit_of(name: str) -> Unit:
    """The unit of any metric; empty for one that has none or is not known."""
    known = METRICS.get(name)
    if known is not None:
        return known.unit
    return next((family.unit for family in FAMILIES if family.has(name)), "")


def in_percent(name: str) -> bool:
    """Whether people read the metric in percent: shares and probabilities."""
    return unit_of(name) in ("share", "probability")


def title_of(name: str) -> str:
    """A title that needs no panel around it: `Reward: before filtering`; the name itself for an unknown metric."""
    known, validation = METRICS.get(name), validation_of(name)
    if validation is not None:
        return f"Validation: {validation.set_name} {validation.title}"
    if (reward := reward_of(name)) is not None:
        return f"{Panel.REWARD}: {reward}"
    if known is None:
        return name
    return known.title.capitalize() if known.panel is None else f"{known.panel}: {known.title}"


def panel_of(name: str) -> Panel | None:
    """The panel that shows the metric; None for one that no panel shows."""
    known = METRICS.get(name)
    if known is not None:
        return known.panel
    if reward_of(name) is not None:
        return Panel.REWARD
    return Panel.ACCURACY if validation_of(name) is not None else None


def is_documented(name: str) -> bool:
    """Whether the catalogue or a family has the metric."""
    return name in METRICS or any(family.has(name) for family in FAMILIES)
