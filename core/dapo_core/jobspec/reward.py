"""The reward of a job: how a response is scored."""

from typing import Annotated, Literal

from pydantic import Field

from dapo_core.jobspec import patterns
from dapo_core.jobspec.base import Items, ShortName, SpecModel

Weight = Annotated[float, Field(ge=-1000, le=1000)]


class ScoringRule(SpecModel):
    """What scores a response: a rule of the platform, or a function of the user."""

    type: Literal["math", "exact", "custom"] = Field(
        default="math",
        description="`math` compares the last stated result by rule, `exact` compares text, `custom` calls the "
        "function of `module` or `file`. Unlike a reward model, a rule cannot be exploited.",
    )
    answer_rule: Literal["value", "published"] = Field(
        default="value",
        description="How `math` compares: `value` by what the answer is worth, however it is written; `published` with "
        "verl's own function for the paper's recipe, as normalized text, for comparisons with published runs.",
    )
    module: str | None = Field(
        default=None,
        max_length=253,
        pattern=patterns.REWARD_MODULE.regex,
        description="`package.module:function` of a custom reward, importable in the trainer's image.",
    )
    file: str | None = Field(
        default=None,
        max_length=1024,
        pattern=patterns.REWARD_FILE.regex,
        description="`/folder/file.py:function` of a custom reward; `dapo run` also takes a path relative to the job "
        "file. On Kubernetes, a path in the head pod, such as a mounted ConfigMap.",
    )
    per_group: bool = Field(
        default=False,
        description="Whether the custom function scores all responses to a prompt in one call, from a list of "
        "responses to a list of scores.",
    )

    @property
    def label(self) -> str:
        """The rule in a word, for a record of what scored: its function, else its type and how that compares."""
        compared = "/published" if self.answer_rule == "published" else ""
        return self.module or self.file or f"{self.type}{compared}"


class AdditionalReward(ScoringRule):
    """A reward beside the main one, which changes the score and never what counts as correct."""

    name: ShortName = Field(description="Name in metrics (`dapo/rewards/{name}`); unique within the job.")
    weight: Weight = Field(default=1.0, description="Factor of its score in the sum.")


class Reward(ScoringRule):
    """How a response is scored: +1 when correct and -1 when incorrect, as in the paper."""

    name: ShortName | None = Field(
        default=None, description="Name in metrics, where there are additional rewards. If not set, the type."
    )
    weight: Weight = Field(default=1.0, description="Factor of this score in the sum with the additional rewards.")
    additional: Items[AdditionalReward] = Field(
        default=(),
        max_length=16,
        description="Rewards that are added to this one, each times its weight. Accuracy and dynamic sampling by "
        "accuracy use this one alone.",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Processes that run a custom function, and as many for the algebra library. If not set, one for "
        "each core that the driver may use (on Kubernetes, the CPU limit of the head pod). More help a function that "
        "waits for a server.",
    )
    timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Seconds after which one call that scores is killed. A rule takes milliseconds, so ten seconds "
        "only stops one that hangs.",
    )
    on_timeout: Literal["Exclude", "Wrong"] = Field(
        default="Exclude",
        description="How to treat a response whose scoring hung or crashed. `Exclude` leaves it out of its group's "
        "statistics and of the loss, because an invented -1 biases the advantages; `Wrong` scores it -1.",
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all rewards in metrics, the main one first."""
        return (self.name or self.type, *(reward.name for reward in self.additional))
