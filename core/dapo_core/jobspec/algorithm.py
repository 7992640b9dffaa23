"""The objective: DAPO's four techniques, each with its own switch."""

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from dapo_core.jobspec.base import SpecModel, filled


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


class Algorithm(SpecModel):
    """The loss, and which samples it is computed on."""

    preset: Literal["dapo", "grpo"] = Field(
        default="dapo",
        description="Values of those fields of algorithm, optimizer and batch that are not set: `dapo` is the paper's "
        "recipe, `grpo` its naive baseline (first row of Table 1).",
    )
    clip_low: float = filled(
        "Lower clip range: the probability ratio is clipped at 1 - clipLow. Kept small, because a larger one would "
        "push the probability of tokens to zero.",
        ge=0,
        lt=1,
    )
    clip_high: float = filled(
        "Upper clip range: the ratio is clipped at 1 + clipHigh. The paper raises it to 0.28 (Clip-Higher), so that "
        "unlikely tokens can become likelier and entropy does not collapse.",
        ge=0,
        le=10,
    )
    dual_clip: float = filled(
        "Bound of the loss for negative advantages at ratios far above 1. 10 is from the published script; the paper "
        "does not mention it, and verl's default of 3 would clip more.",
        gt=1,
        le=1000,
    )
    loss_aggregation: Literal["TokenMean", "SequenceMean"] = filled(
        "`TokenMean` gives every token of the batch the same weight (equation 12), so that a response counts in "
        "proportion to its length; "
        "`SequenceMean` averages within each response first, as GRPO does."
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
    importance_correction: ImportanceCorrection | None = Field(
        default=None,
        description="Truncated importance sampling. If not set, none is applied, as in the paper; worth setting in "
        "Separated mode or when the difference between trainer and rollout grows. Needs batch.topP 1.",
    )
