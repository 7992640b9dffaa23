"""The curves of a run: one name, unit, title and panel each. Names are verl's where verl has one."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

Unit = Literal["", "share", "tokens", "nats", "seconds", "tokens/s", "probability", "prompts", "batches"]


class Panel(StrEnum):
    """Charts of a run page, in its order (the paper's own monitoring first)."""

    LENGTH = "Response length"
    REWARD = "Reward"
    ENTROPY = "Entropy and mean probability"
    ACCURACY = "Accuracy"
    GROUPS = "Groups"
    OPTIMISATION = "Optimisation"
    MISMATCH = "Trainer against rollout"
    SPEED = "Speed"


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    unit: Unit
    panel: Panel


REWARD_GENERATED: Final = "dapo/reward/generated"
REWARD_TRAINED: Final = "critic/score/mean"
ACCURACY_GENERATED: Final = "dapo/accuracy/generated"
ACCURACY_TRAINED: Final = "dapo/accuracy/trained"
LENGTH_MEAN: Final = "response_length/mean"
LENGTH_MAX: Final = "response_length/max"
TRUNCATED: Final = "response_length/clip_ratio"
ENTROPY: Final = "actor/entropy"
MEAN_PROBABILITY: Final = "dapo/mean_probability"
GROUPS_ALL_WRONG: Final = "dapo/groups/all_wrong"
GROUPS_MIXED: Final = "dapo/groups/mixed"
GROUPS_ALL_RIGHT: Final = "dapo/groups/all_right"
GROUPS_LOST: Final = "dapo/groups/lost"
GROUPS_GENERATED: Final = "dapo/groups/generated"
GROUPS_CARRIED: Final = "dapo/groups/carried"
GROUPS_DROPPED: Final = "dapo/groups/dropped"
GROUPS_TRAINED: Final = "dapo/groups/trained"
GENERATION_BATCHES: Final = "dapo/generation_batches"
TOKENS_GENERATED: Final = "dapo/tokens/generated"
TOKENS_TRAINED: Final = "dapo/tokens/trained"
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
STORE_LAG: Final = "dapo/store_lag_seconds"

_ALL: Final = (
    Metric(LENGTH_MEAN, "mean", "tokens", Panel.LENGTH),
    Metric(LENGTH_MAX, "longest", "tokens", Panel.LENGTH),
    Metric(TRUNCATED, "cut at the limit", "share", Panel.LENGTH),
    Metric(REWARD_GENERATED, "all generated", "", Panel.REWARD),
    Metric(REWARD_TRAINED, "trained on", "", Panel.REWARD),
    Metric(REWARD_FAILURES, "checks that failed", "", Panel.REWARD),
    Metric(ENTROPY, "entropy per token", "nats", Panel.ENTROPY),
    Metric(MEAN_PROBABILITY, "mean probability of sampled tokens", "probability", Panel.ENTROPY),
    Metric(ACCURACY_GENERATED, "all generated", "share", Panel.ACCURACY),
    Metric(ACCURACY_TRAINED, "trained on", "share", Panel.ACCURACY),
    Metric(GROUPS_ALL_WRONG, "all wrong", "share", Panel.GROUPS),
    Metric(GROUPS_MIXED, "mixed", "share", Panel.GROUPS),
    Metric(GROUPS_ALL_RIGHT, "all right", "share", Panel.GROUPS),
    Metric(GROUPS_LOST, "lost to a fault", "share", Panel.GROUPS),
    Metric(GROUPS_GENERATED, "generated", "prompts", Panel.GROUPS),
    Metric(GROUPS_CARRIED, "carried to the next step", "prompts", Panel.GROUPS),
    Metric(GROUPS_DROPPED, "dropped as surplus", "prompts", Panel.GROUPS),
    Metric(GROUPS_TRAINED, "trained on", "prompts", Panel.GROUPS),
    Metric(GENERATION_BATCHES, "generation batches", "batches", Panel.GROUPS),
    Metric(TOKENS_GENERATED, "response tokens generated", "tokens", Panel.GROUPS),
    Metric(TOKENS_TRAINED, "response tokens trained on", "tokens", Panel.GROUPS),
    Metric(POLICY_LOSS, "policy loss", "", Panel.OPTIMISATION),
    Metric(GRADIENT_NORM, "gradient norm", "", Panel.OPTIMISATION),
    Metric(LEARNING_RATE, "learning rate", "", Panel.OPTIMISATION),
    Metric(CLIP_FRACTION_HIGH, "clipped above", "share", Panel.OPTIMISATION),
    Metric(CLIP_FRACTION_LOW, "clipped below", "share", Panel.OPTIMISATION),
    Metric(KL, "approximate KL to the policy that sampled", "nats", Panel.OPTIMISATION),
    Metric(MISMATCH, "mean difference in probability", "probability", Panel.MISMATCH),
    Metric(STALENESS, "policy versions behind", "", Panel.MISMATCH),
    Metric(THROUGHPUT, "tokens a second and accelerator", "tokens/s", Panel.SPEED),
    Metric(STEP_SECONDS, "a step", "seconds", Panel.SPEED),
    Metric(STORE_LAG, "record behind training", "seconds", Panel.SPEED),
)
METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _ALL}
"""The catalogue by name. `timing_s/*` (seconds a phase) and `val-core/{set}/acc/*@k` are families, not listed."""
