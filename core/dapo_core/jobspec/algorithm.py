"""The objective: DAPO's four techniques, each with its own switch."""

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from dapo_core.jobspec.base import SpecModel, filled
from dapo_core.jobspec.losses import DEFAULT_LOSS, LossName


class DynamicSampling(SpecModel):
    """Keeps only groups with correct and incorrect responses, and samples on until the batch is full."""

    enabled: bool = filled(
        "Drop groups that are all correct or all incorrect, whose advantage is zero, and refill the batch. Section 3.2."
    )
    filter_by: Literal["accuracy", "spread"] = filled(
        "What makes a group worth training on: `accuracy`, both correct and incorrect responses, as in the paper; "
        "`spread`, responses of different scores before the length penalty, for rewards that are not only right or "
        "wrong."
    )
    max_generation_batches: int = filled(
        "Maximum batches of prompts that one step generates; 0 means no limit. The paper's early steps keep about "
        "half of the groups, so ten is far beyond a healthy run and still ends a step that can never be filled.",
        ge=0,
        le=1_000_000,
    )
    on_exhausted: Literal["TrainPartial", "Suspend", "Fail"] = filled(
        "What happens at that limit: train on the groups collected so far, suspend the job until someone resumes it, "
        "or fail it. A partial batch is still unbiased, so it is the default."
    )
    surplus: Literal["Discard", "Carry"] = filled(
        "What happens to groups beyond a full batch in Colocated mode. `Discard` drops them, as the published script "
        "does, so that a step trains on responses of the current policy only. `Carry` keeps up to one batch of them "
        "for the next step: fewer prompts are generated, and these responses are one step off-policy; their "
        "probability ratios are then relative to the policy that sampled them. In Separated mode nothing is left over."
    )


class OverlongPenalty(SpecModel):
    """Soft overlong punishment: a reward that falls linearly over the last `cacheTokens` before the limit."""

    enabled: bool = filled("Whether the penalty applies. Setting any of its numbers enables it too.")
    expected_tokens: int = filled(
        "Response length in tokens up to which nothing is subtracted (16,384 in the paper). If not set, "
        "batch.maxResponseTokens minus cacheTokens.",
        ge=0,
        le=10_000_000,
    )
    cache_tokens: int = filled(
        "Width in tokens of the zone where the penalty grows from 0 to `factor` (4,096 in the paper). If not set, a "
        "fifth of batch.maxResponseTokens, the paper's proportion.",
        ge=1,
        le=10_000_000,
    )
    factor: float = filled(
        "Penalty in reward units at the end of the zone and beyond it, as in the paper's equation 13.",
        ge=0,
        le=1000,
    )


class Overlong(SpecModel):
    """How responses that reach the length limit are treated. Filter and penalty work alone or together."""

    filter: bool = filled(
        "Leave truncated responses out of the loss, because truncated does not mean incorrect. The first gain of the "
        "paper's Table 1 (30 to 36); its rows are cumulative, so preset dapo enables both filter and penalty."
    )
    penalty: OverlongPenalty | None = filled(
        "Soft overlong punishment (equation 13). Accuracy never includes it; disabled by null or `enabled: false`."
    )

    @field_validator("penalty")
    @classmethod
    def _none_if_disabled(cls, penalty: OverlongPenalty | None) -> OverlongPenalty | None:
        return penalty if penalty is not None and penalty.enabled else None

    # The preset would fill in an absent penalty when the dump is read again, so a disabled one is written out.
    @model_serializer(mode="wrap")
    def _write_disabled(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return fields if self.penalty is not None else {**fields, "penalty": {"enabled": False}}


class ImportanceCorrection(SpecModel):
    """Truncated importance sampling, which corrects for the mismatch of vLLM's and the trainer's probabilities."""

    level: Literal["Token", "Sequence"] = Field(
        default="Token",
        description="Whether each token or each whole response gets a weight. Token has the lower variance.",
    )
    cap: float = Field(
        default=2.0, gt=1, le=1000, description="Maximum weight. 2 is verl's recommendation for token weights."
    )


class RolloutRejection(SpecModel):
    """Leaves tokens or responses out of the loss whose probabilities in trainer and rollout differ too much."""

    level: Literal["Token", "SequenceMean", "SequenceSum", "SequenceMax"] = Field(
        default="Token",
        description="What is measured and left out: each token by itself, or whole responses by the mean, the sum or "
        "the maximum over their tokens.",
    )
    measure: Literal["Ratio", "K2", "K3"] = Field(
        default="Ratio",
        description="`Ratio` is the trainer's probability over the rollout's, r, with two bounds; of a response its "
        "geometric mean (SequenceMean) or product (SequenceSum). `K2` is (log r)^2 / 2 and `K3` is r - 1 - log r: "
        "distances with an upper bound.",
    )
    lower: float | None = Field(
        default=None, gt=0, le=1e6, description="Smallest ratio that is kept. If not set, 1 / upper. With Ratio only."
    )
    upper: float = Field(
        default=2.0,
        gt=0,
        le=1e6,
        description="Largest ratio or distance that is kept. 2 is verl's example for Ratio; distances need far less.",
    )


class Algorithm(SpecModel):
    """The loss, and which samples it is computed on."""

    preset: Literal["dapo", "grpo"] = Field(
        default="dapo",
        description="Values of those fields of algorithm, optimizer and batch that are not set: `dapo` is the paper's "
        "recipe, `grpo` its naive baseline (first row of Table 1).",
    )
    loss: LossName = Field(
        default=DEFAULT_LOSS,
        description="The policy loss. `dapo`: the clipped one of PPO, GRPO and DAPO; `gspo` clips the ratio of whole "
        "responses (arXiv 2507.18071); `cispo` clips the importance weight and drops no token (2506.13585); `sapo` has "
        "a smooth gate instead of a clip (2511.20347); `drgrpo` is `dapo` without division by response length and "
        "standard deviation (2503.20783). It changes defaults of the fields below; docs/algorithms.md compares them.",
    )
    clip_low: float | None = filled(
        "Lower clip range: the probability ratio is clipped at 1 - clipLow, so 1 is no lower bound. Kept small, "
        "because a larger one would push the probability of tokens to zero. Not used by loss sapo.",
        ge=0,
        le=1,
    )
    clip_high: float | None = filled(
        "Upper clip range: the ratio is clipped at 1 + clipHigh. The paper raises it to 0.28 (Clip-Higher), so that "
        "unlikely tokens can become likelier and entropy does not collapse. Not used by loss sapo.",
        ge=0,
        le=10,
    )
    dual_clip: float | None = filled(
        "Bound of the loss for negative advantages at ratios far above 1. 10 is from the published script; the paper "
        "does not mention it, and verl's default of 3 would clip more. Used by losses dapo and drgrpo.",
        gt=1,
        le=1000,
    )
    tau_positive: float | None = filled(
        "Temperature of SAPO's gate for positive advantages: the larger, the faster a token's weight falls as its "
        "ratio leaves 1. Used by loss sapo.",
        gt=0,
        le=1000,
    )
    tau_negative: float | None = filled(
        "The same for negative advantages; larger, because they spread over many unlikely tokens. Used by loss sapo.",
        gt=0,
        le=1000,
    )
    loss_aggregation: Literal["TokenMean", "SequenceMean", "SequenceSum"] = filled(
        "`TokenMean` gives every token of the batch the same weight (equation 12), so that a response counts in "
        "proportion to its length; "
        "`SequenceMean` averages within each response first, as GRPO does; "
        "`SequenceSum` sums within each response and divides by batch.maxResponseTokens, as Dr. GRPO does."
    )
    normalize_by_std: bool = filled(
        "Divide advantages by the standard deviation of their group's rewards, as GRPO does (equation 9). Dr. GRPO "
        "does not, because groups that are nearly all right or wrong would weigh more."
    )
    kl_coefficient: float = filled(
        "Weight of the KL divergence from the initial model. 0, because a policy that learns long reasoning moves far "
        "from it (section 2.3); also 0 in preset grpo, because no row of the ablation adds or removes a KL term.",
        ge=0,
        le=100,
    )
    dynamic_sampling: DynamicSampling = filled("Dynamic sampling (section 3.2).")
    overlong: Overlong = filled("Overlong reward shaping (section 3.4).")
    entropy_coefficient: float = filled(
        "Weight of an entropy bonus. 0, because Clip-Higher keeps entropy up without one.", ge=0, le=10
    )
    max_staleness: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Separated mode: how many versions of the weights a group's oldest token may lie behind those that "
        "its step begins with; older groups are dropped and replaced. A batch that is generated ahead is 1 behind. If "
        "not set, none are dropped.",
    )
    old_log_probs: Literal["Trainer", "Rollout"] | None = Field(
        default=None,
        description="Whose log-probs of the sampled tokens the probability ratios are relative to. `Trainer`: its own, "
        "computed before the updates of a step, a forward pass over the batch. `Rollout`: vLLM's, without that pass; "
        "ratios then include the difference between trainer and rollout, and entropy is estimated by the sampled "
        "tokens. If not set, `Trainer`. Rollout needs batch.topP 1.",
    )
    importance_correction: ImportanceCorrection | None = Field(
        default=None,
        description="Truncated importance sampling. If not set, none is applied, as in the paper; worth setting in "
        "Separated mode or when the difference between trainer and rollout grows. Needs batch.topP 1.",
    )
    rollout_rejection: RolloutRejection | None = Field(
        default=None,
        description="Rejection of what the rollout sampled with other probabilities than the trainer's (verl's "
        "rollout_rs). If not set, nothing is rejected. Needs batch.topP 1.",
    )
