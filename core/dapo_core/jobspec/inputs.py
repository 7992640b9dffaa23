"""What goes in: model, data and reward."""

from typing import Annotated, Literal

from pydantic import Field

from dapo_core.jobspec.base import Items, ShortName, SpecModel, Uri


class Lora(SpecModel):
    """Low-rank adapters instead of training every weight."""

    rank: int = Field(
        default=32, ge=1, le=1024, description="Rank of the adapters. Higher learns more and costs more memory."
    )
    alpha: int = Field(
        default=32, ge=1, le=4096, description="Scale of the adapters; alpha / rank multiplies their output."
    )
    target_modules: Items[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default=("all-linear",),
        min_length=1,
        max_length=64,
        description="Names of the layers that get an adapter. `all-linear` is every linear layer but the output head.",
    )


class Model(SpecModel):
    """The policy that is trained."""

    source: Uri = Field(
        description="Where the model in Hugging Face format lies: hf://owner/name, s3://bucket/folder, "
        "file:///folder or pvc://claim/folder; `dapo run` also takes a path relative to the job file."
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Commit, tag or branch of an hf:// source. Left out, the main branch of that day is used, so name "
        "a commit where a run must be repeatable.",
    )
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default="bfloat16",
        description="Number format of weights in the forward pass and in vLLM; the optimizer keeps float32. "
        "bfloat16 needs no loss scaling; processors without bfloat16 units are faster with float32.",
    )
    gradient_checkpointing: bool = Field(
        default=True,
        description="Recompute activations in the backward pass: about a third more compute for far less memory, "
        "which long responses need.",
    )
    lora: Lora | None = Field(
        default=None, description="Train low-rank adapters only. Left out, all weights are trained, as in the paper."
    )


class TrainData(SpecModel):
    """One training file."""

    source: Uri = Field(
        description="A Parquet or JSONL file in verl's chat schema (columns prompt, reward_model, data_source): "
        "hf://, s3://, file:///, pvc://; `dapo run` also takes a path relative to the job file."
    )


class ValidationData(SpecModel):
    """One validation set, reported under its own name."""

    name: ShortName = Field(
        description="Name of the set in metrics (`val-core/{name}/acc/mean@32`); unique within the job."
    )
    source: Uri = Field(description="A file in the same schema and places as training data; one row per problem.")
    samples_per_prompt: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Responses sampled per problem, the k of mean@k. The paper repeats AIME 32 times because 30 "
        "problems answered once are too noisy to compare.",
    )
    temperature: float = Field(
        default=1.0, ge=0, le=10, description="Sampling temperature of validation; 0 is greedy. 1.0 is the paper's."
    )
    top_p: float = Field(
        default=0.7, gt=0, le=1, description="Share of probability mass sampled from. 0.7 is the paper's."
    )


class Data(SpecModel):
    """Prompts to train and validate on."""

    train: Items[TrainData] = Field(
        min_length=1, max_length=64, description="Training files, read as one set and shuffled by `seed`."
    )
    validation: Items[ValidationData] = Field(
        default=(), max_length=16, description="Validation sets; none means that nothing is validated."
    )
    max_prompt_tokens: int = Field(
        default=2048,
        ge=1,
        le=1_048_576,
        description="Longest prompt in tokens; data with a longer one is refused before training starts. "
        "2,048 is the published script's and holds every prompt of DAPO-Math-17k.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2_147_483_647,
        description="Seed of data order, sampling and initialisation. The same seed gives the same data order; "
        "GPU arithmetic still varies.",
    )


class Reward(SpecModel):
    """How a response is judged: +1 when right and -1 when wrong, as in the paper."""

    type: Literal["math", "exact", "custom"] = Field(
        default="math",
        description="`math` checks the last stated answer by rule, `exact` compares text, `custom` calls `module`. "
        "A rule can't be flattered as a reward model can.",
    )
    module: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        description="`package.module:function` of a custom reward, importable in the trainer's image.",
    )
    timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Seconds after which the check of one response is killed. A rule takes milliseconds; "
        "ten seconds only ever stops a hang.",
    )
    on_timeout: Literal["Exclude", "Wrong"] = Field(
        default="Exclude",
        description="What a response counts as whose check hung or crashed. `Exclude` leaves it out of its group's "
        "statistics and of the loss, because a made-up -1 biases the advantages; `Wrong` counts -1.",
    )
