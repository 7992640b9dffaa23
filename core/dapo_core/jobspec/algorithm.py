"""The objective: DAPO's four techniques, each with its own switch."""

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from dapo_core.jobspec.base import SpecModel, filled


class DynamicSampling(SpecModel):
    """Keep only groups that teach something (0 < right answers < group size) and sample on until the batch is full."""

    enabled: bool = filled(
        "Drop groups that are all right or all wrong, whose advantage is zero, and refill the batch. Section 3.2."
    )
    max_generation_batches: int = filled(
        "How many batches of prompts one step may generate; 0 is no cap. The paper's early steps keep about half "
        "of the groups, so ten is far beyond a healthy run and still ends a step that can never fill.",
        ge=0,
        le=1_000_000,
    )
    on_exhausted: Literal["TrainPartial", "Suspend", "Fail"] = filled(
        "What happens at that cap: train on the groups found so far, suspend the job for a person, or fail it. "
        "A partial batch is still unbiased, so it is the default."
    )


class OverlongPenalty(SpecModel):
    """Soft overlong punishment: a reward that falls linearly over the last `cacheTokens` before the limit."""

    enabled: bool = filled("Switch of the penalty. Naming any of its numbers switches it on too.")
    expected_tokens: int = filled(
        "Response length in tokens up to which nothing is subtracted (16,384 in the paper). Left out, it is what "
        "cacheTokens leave of batch.maxResponseTokens.",
        ge=0,
        le=10_000_000,
    )
    cache_tokens: int = filled(
        "Width in tokens of the zone where the penalty grows from 0 to `factor` (4,096 in the paper). Left out, it "
        "is a fifth of batch.maxResponseTokens, the paper's proportion.",
        ge=1,
        le=10_000_000,
    )
    factor: float = filled(
        "Penalty in reward units at and past the end of the zone; clamped there, as in the paper's equation 13.",
        ge=0,
        le=1000,
    )


class Overlong(SpecModel):
    """What is done about responses that run into the length limit. Filter and penalty work alone or together."""

    filter: bool = filled(
        "Leave truncated responses out of the loss: cut off is not wrong. The first gain of the paper's Table 1 "
        "(30 to 36); its rows add up, so preset dapo has filter and penalty on."
    )
    penalty: OverlongPenalty | None = filled(
        "Soft overlong punishment (equation 13). Accuracy never includes it; off when null or `enabled: false`."
    )

    @field_validator("penalty")
    @classmethod
    def _off_is_none(cls, penalty: OverlongPenalty | None) -> OverlongPenalty | None:
        return penalty if penalty is not None and penalty.enabled else None

    # An absent penalty would be filled by the preset when the dump is read again: off has to be said.
    @model_serializer(mode="wrap")
    def _off_is_said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return fields if self.penalty is not None else {**fields, "penalty": {"enabled": False}}


class ImportanceCorrection(SpecModel):
    """Truncated importance sampling against the mismatch between vLLM's and the trainer's probabilities."""

    level: Literal["Token", "Sequence"] = Field(
        default="Token", description="Whether each token or each whole response gets one weight. Token varies less."
    )
    cap: float = Field(
        default=2.0, gt=1, le=1000, description="Largest weight. 2 is verl's recommendation for token weights."
    )


class Algorithm(SpecModel):
    """The loss and what is sampled for it."""

    preset: Literal["dapo", "grpo"] = Field(
        default="dapo",
        description="Values of every field of algorithm, optimizer and batch that the file leaves out: `dapo` is the "
        "paper's recipe, `grpo` its naive baseline (first row of Table 1).",
    )
    clip_low: float = filled(
        "Lower clip range: the probability ratio stops counting below 1 - clipLow. Kept small, because a larger one "
        "would press tokens to zero probability.",
        ge=0,
        lt=1,
    )
    clip_high: float = filled(
        "Upper clip range: the ratio stops counting above 1 + clipHigh. The paper raises it to 0.28 (Clip-Higher), "
        "so that unlikely tokens can grow and entropy does not collapse.",
        ge=0,
        le=10,
    )
    dual_clip: float = filled(
        "Bound of the loss for negative advantages at ratios far above 1. 10 is the published script's; the paper "
        "does not name it, and verl's own 3 would cut more.",
        gt=1,
        le=1000,
    )
    loss_aggregation: Literal["TokenMean", "SequenceMean"] = filled(
        "`TokenMean` weighs every token of the batch alike (equation 12), so long responses count by their length; "
        "`SequenceMean` averages within each response first, as GRPO does."
    )
    kl_coefficient: float = filled(
        "Weight of the KL term to the starting model. 0, because long reasoning should drift from it (section 2.3); "
        "also 0 in preset grpo, since no row of the ablation adds or removes a KL term.",
        ge=0,
        le=100,
    )
    dynamic_sampling: DynamicSampling = filled("Dynamic sampling (section 3.2).")
    overlong: Overlong = filled("Overlong reward shaping (section 3.4).")
    entropy_coefficient: float = filled(
        "Weight of an entropy bonus. 0: Clip-Higher keeps entropy up without one.", ge=0, le=10
    )
    importance_correction: ImportanceCorrection | None = Field(
        default=None,
        description="Truncated importance sampling. Left out, none is applied, as in the paper; worth setting in "
        "Separated mode or when the trainer-rollout difference grows.",
    )
