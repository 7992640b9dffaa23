"""The reward of a job: how a response is scored."""

from typing import Literal

from pydantic import Field

from dapo_core.jobspec import patterns
from dapo_core.jobspec.base import SpecModel


class Reward(SpecModel):
    """How a response is scored: +1 when correct and -1 when incorrect, as in the paper."""

    type: Literal["math", "exact", "custom"] = Field(
        default="math",
        description="`math` compares the last stated result by rule, `exact` compares text, `custom` calls `module`. "
        "Unlike a reward model, a rule cannot be exploited.",
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
    timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Seconds after which scoring one response is killed. A rule takes milliseconds, so ten seconds "
        "only stops one that hangs.",
    )
    on_timeout: Literal["Exclude", "Wrong"] = Field(
        default="Exclude",
        description="How to treat a response whose scoring hung or crashed. `Exclude` leaves it out of its group's "
        "statistics and of the loss, because an invented -1 biases the advantages; `Wrong` scores it -1.",
    )
