"""The inputs of a job: model and data."""

from typing import Annotated, Final, Literal

from pydantic import Field

from dapo_core.jobspec.base import Items, ShortName, SpecModel, Uri

# In place of names of layers.
ALL_LINEAR: Final = "all-linear"


class Lora(SpecModel):
    """Low-rank adapters, trained in place of the weights. vLLM and exported models get weights with adapters merged."""

    rank: int = Field(
        default=32, ge=1, le=1024, description="Rank of the adapters. A higher rank learns more and needs more memory."
    )
    alpha: int = Field(
        default=32, ge=1, le=4096, description="Scale of the adapters: their output is multiplied by alpha / rank."
    )
    target_modules: Items[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default=(ALL_LINEAR,),
        min_length=1,
        max_length=64,
        description="Names of layers that get an adapter, such as q_proj. `all-linear`, on its own, means every linear "
        "layer except the output head.",
    )


class Model(SpecModel):
    """The policy that is trained."""

    source: Uri = Field(
        description="URI of a model in Hugging Face format: hf://owner/name, s3://bucket/folder, file:///folder or "
        "pvc://claim/folder; `dapo run` also takes a path relative to the job file."
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Commit, tag or branch of an hf:// source. If not set, the newest commit of the main branch; set "
        "a commit where a run must be reproducible.",
    )
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default="bfloat16",
        description="Data type of the weights in the forward pass and in vLLM; the optimizer keeps float32. "
        "bfloat16 needs no loss scaling; CPUs without bfloat16 units are faster with float32.",
    )
    gradient_checkpointing: bool = Field(
        default=True,
        description="Recompute activations in the backward pass: about a third more compute for much less memory, "
        "which long responses need.",
    )
    lora: Lora | None = Field(
        default=None, description="Train low-rank adapters only. If not set, all weights are trained, as in the paper."
    )


class TrainData(SpecModel):
    """One training file."""

    source: Uri = Field(
        description="A Parquet or JSONL file in verl's chat schema (columns prompt, reward_model, data_source): "
        "hf://, s3://, file:/// or pvc://; `dapo run` also takes a path relative to the job file."
    )
    weight: float | None = Field(
        default=None,
        ge=0.001,
        le=1000,
        description="Share of the prompts that are drawn from this file, relative to the weights of the others; set it "
        "for all files or for none. If not set, every prompt of every file is drawn equally often.",
    )


class ValidationData(SpecModel):
    """One validation set, reported under its own name."""

    name: ShortName = Field(
        description="Name of the set in metrics (`val-core/{name}/acc/mean@32`); unique within the job."
    )
    source: Uri = Field(description="A file as for training data, with one row per problem.")
    samples_per_prompt: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Responses sampled per problem, the k of mean@k. The paper samples AIME 32 times, because one "
        "response to each of 30 problems is too noisy to compare.",
    )
    temperature: float = Field(
        default=1.0,
        ge=0,
        le=10,
        description="Sampling temperature of validation; 0 means greedy. 1.0 is from the paper.",
    )
    top_p: float = Field(
        default=0.7,
        gt=0,
        le=1,
        description="Probability mass that is sampled from (nucleus sampling). 0.7 is from the paper.",
    )


class Data(SpecModel):
    """Prompts for training and validation."""

    train: Items[TrainData] = Field(
        min_length=1, max_length=64, description="Training files, read as one set and shuffled by `seed`."
    )
    validation: Items[ValidationData] = Field(
        default=(), max_length=16, description="Validation sets; an empty list means no validation."
    )
    max_prompt_tokens: int = Field(
        default=2048,
        ge=1,
        le=1_048_576,
        description="Maximum prompt length in tokens; data with a longer prompt is rejected before training starts. "
        "2,048 is from the published script and fits every prompt of DAPO-Math-17k.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2_147_483_647,
        description="Seed of data order, sampling and initialization. The same seed gives the same data order; "
        "results on GPUs still vary.",
    )

    @property
    def weighted(self) -> bool:
        """Whether training files have weights: all of them then, by a rule."""
        return any(item.weight is not None for item in self.train)
