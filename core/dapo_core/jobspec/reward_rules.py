"""Rules between the fields of the reward."""

from collections.abc import Iterator
from typing import Final

from dapo_core.errors import Problem
from dapo_core.jobspec.reward import Reward
from dapo_core.jobspec.rule_table import CelRule, RuleTable, problem

RULES: Final = RuleTable()


@RULES.rule(
    "reward",
    cel=CelRule(
        "spec.reward",
        rule="(has(self.type) && self.type == 'custom') == has(self.module)",
        message="spec.reward.module (package.module:function) is required when spec.reward.type is custom, and not "
        "allowed otherwise: set both or neither.",
        field_path=".module",
    ),
)
def custom_module(reward: Reward) -> Iterator[Problem]:
    if reward.type == "custom" and reward.module is None:
        yield problem("reward.module", "is missing but spec.reward.type is custom: set it to package.module:function.")
    if reward.type != "custom" and reward.module is not None:
        yield problem(
            "reward.module",
            f'is "{reward.module}" but spec.reward.type is {reward.type}: set spec.reward.type to custom or remove it.',
        )


@RULES.rule(
    "reward",
    cel=CelRule(
        "spec.reward",
        rule="!has(self.answerRule) || self.answerRule == 'value' || !has(self.type) || self.type == 'math'",
        message="spec.reward.answerRule is published but spec.reward.type is not math: remove one of the two.",
        field_path=".answerRule",
    ),
)
def rule_of_math(reward: Reward) -> Iterator[Problem]:
    if reward.answer_rule == "published" and reward.type != "math":
        yield problem(
            "reward.answerRule",
            f"is published but spec.reward.type is {reward.type}, which compares no answers: set spec.reward.type to "
            "math or remove it.",
        )
