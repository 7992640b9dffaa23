"""What one step does and how many there are: optimizer, batch and schedule."""

from pydantic import Field

from dapo_core.jobspec.base import SpecModel, filled


class Optimizer(SpecModel):
    """AdamW."""

    learning_rate: float = filled("Learning rate of AdamW after warm-up; constant from then on.", gt=0, le=1)
    warmup_steps: int = filled(
        "Steps over which the learning rate rises linearly from 0. 20 is from the paper; the published script has 10.",
        ge=0,
        le=1_000_000,
    )
    weight_decay: float = filled("Decoupled weight decay of AdamW, from the published script.", ge=0, le=10)
    gradient_clip: float = filled(
        "Maximum gradient norm; larger gradients are scaled down to it. From the published script.", gt=0, le=1000
    )


class Batch(SpecModel):
    """What one step samples and trains on."""

    prompts: int = filled(
        "Prompts trained on per step, after dynamic sampling has filled the batch.", ge=1, le=1_000_000
    )
    responses_per_prompt: int = filled("Responses per prompt: the group G of GRPO and DAPO.", ge=1, le=4096)
    mini_batch_responses: int = filled(
        "Responses per optimizer update. The paper's 512 make 16 updates per step. If not set, the fewest whole groups "
        "that make at most 16 updates per step.",
        ge=1,
        le=1_000_000_000,
    )
    max_response_tokens: int = filled(
        "Maximum response length in tokens; longer ones are truncated. 20,480 is 16,384 expected and 4,096 of soft "
        "penalty.",
        ge=1,
        le=10_000_000,
    )
    temperature: float = filled(
        "Sampling temperature during training. 1.0 samples from the policy itself; other values are off-policy.",
        gt=0,
        le=10,
    )
    top_p: float = filled(
        "Probability mass that is sampled from (nucleus sampling). 1.0 samples from all tokens.", gt=0, le=1
    )

    @property
    def responses(self) -> int:
        """Responses trained on per step."""
        return self.prompts * self.responses_per_prompt

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates per step."""
        return self.responses // self.mini_batch_responses

    @property
    def mini_batch_prompts(self) -> int:
        """Whole groups per optimizer update: verl counts mini-batches in prompts."""
        return self.mini_batch_responses // self.responses_per_prompt


class Schedule(SpecModel):
    """How long to train, and how often to validate, checkpoint and log. Set `steps` or `epochs`, not both."""

    steps: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Steps to train; one step is one rollout batch and its updates. With neither steps nor epochs "
        "200, about as many as the published DAPO-32B run (230).",
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Passes over the training data, in place of `steps`: as many steps as batches of `batch.prompts` "
        "fit. Dynamic sampling reads more prompts a step, and so passes over the data more often.",
    )
    validate_every: int = Field(
        default=5,
        ge=0,
        le=10_000_000,
        description="Steps between validations; 0 means never. 5 is from the published script.",
    )
    validate_before: bool = Field(
        default=True, description="Validate once before the first step, as the starting point of the curves."
    )
    checkpoint_every: int = Field(
        default=5,
        ge=0,
        le=10_000_000,
        description="Steps between checkpoints; 0 saves only the last one. Steps since the last checkpoint are lost "
        "when a pod dies. 5 is from the published script.",
    )
    log_samples_every: int = Field(
        default=5,
        ge=0,
        le=10_000_000,
        description="Steps between logged samples (prompts, responses and rewards); 0 means never.",
    )
    record_groups: int = Field(
        default=2,
        ge=0,
        le=64,
        description="Groups of each step with logged samples whose responses are recorded token by token: probability "
        "under rollout and trainer, importance weight, clip, entropy and mask. 0 means none.",
    )


DEFAULT_STEPS = 200
