"""How a step is made and how many there are: optimizer, batch and schedule."""

from pydantic import Field

from dapo_core.jobspec.base import SpecModel, filled


class Optimizer(SpecModel):
    """AdamW."""

    learning_rate: float = filled("AdamW's learning rate after warm-up, constant from then on.", gt=0, le=1)
    warmup_steps: int = filled(
        "Steps over which the learning rate rises linearly from 0. 20 is the paper's; the published script has 10.",
        ge=0,
        le=1_000_000,
    )
    weight_decay: float = filled("AdamW's decoupled weight decay, from the published script.", ge=0, le=10)
    gradient_clip: float = filled(
        "Largest gradient norm; longer gradients are scaled down to it. From the published script.", gt=0, le=1000
    )


class Batch(SpecModel):
    """What one step generates and trains on."""

    prompts: int = filled("Prompts trained on per step, after dynamic sampling filled the batch.", ge=1, le=1_000_000)
    responses_per_prompt: int = filled("Responses per prompt: the group G of GRPO and DAPO.", ge=1, le=4096)
    mini_batch_responses: int = filled(
        "Responses per optimizer update. The paper's 512 make 16 updates a step; left out, as many whole groups as "
        "keep at most 16 updates a step.",
        ge=1,
        le=1_000_000_000,
    )
    max_response_tokens: int = filled(
        "Longest response in tokens; longer ones are cut off. 20,480 is 16,384 expected and 4,096 of soft penalty.",
        ge=1,
        le=10_000_000,
    )
    temperature: float = filled(
        "Sampling temperature of training. 1.0 samples the policy that is trained; others make it off-policy.",
        gt=0,
        le=10,
    )
    top_p: float = filled("Share of probability mass sampled from. 1.0 samples the whole policy.", gt=0, le=1)

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
    """How long to train, and what happens every so many steps. `steps` or `epochs`, never both."""

    steps: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Steps to train (one step is one batch of rollouts and its updates). With neither steps nor "
        "epochs it is 200, about what the published DAPO-32B run took (230).",
    )
    epochs: int | None = Field(
        default=None, ge=1, le=100_000, description="Passes over the training data, instead of `steps`."
    )
    validate_every: int = Field(
        default=5, ge=0, le=10_000_000, description="Steps between validations; 0 never. 5 is the published script's."
    )
    validate_before: bool = Field(
        default=True, description="Validate once before the first step, so that a curve has its starting point."
    )
    checkpoint_every: int = Field(
        default=5,
        ge=0,
        le=10_000_000,
        description="Steps between checkpoints; 0 keeps only the last one. What lies between is lost when a pod "
        "dies. 5 is the published script's.",
    )
    log_samples_every: int = Field(
        default=5, ge=0, le=10_000_000, description="Steps between logged prompts, responses and verdicts; 0 never."
    )


DEFAULT_STEPS = 200
