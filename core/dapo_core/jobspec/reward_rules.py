"""Rules between the fields of the reward."""

from collections.abc import Iterator
from typing import Final

from dapo_core.errors import Problem
from dapo_core.jobspec.reward import Reward, ScoringRule
from dapo_core.jobspec.rule_table import CelRule, RuleTable, problem

RULES: Final = RuleTable()

_FUNCTION: Final = (
    "(has({0}.type) && {0}.type == 'custom' ? has({0}.module) != has({0}.file) : !has({0}.module) && !has({0}.file))"
)
_GROUP: Final = "(!has({0}.perGroup) || !{0}.perGroup || (has({0}.type) && {0}.type == 'custom'))"
_ANSWERS: Final = "(!has({0}.answerRule) || {0}.answerRule == 'value' || !has({0}.type) || {0}.type == 'math')"


def _everywhere(rule: str, field: str, message: str) -> CelRule:
    """`rule` with {0} for the reward, of the main reward and of each additional one."""
    additional = f"(!has(self.additional) || self.additional.all(a, {rule.format('a')}))"
    return CelRule(
        "spec.reward", rule=f"{rule.format('self')} && {additional}", message=message, field_path=f".{field}"
    )


def _rules_of(reward: Reward) -> Iterator[tuple[str, ScoringRule]]:
    yield "reward", reward
    for index, additional in enumerate(reward.additional):
        yield f"reward.additional[{index}]", additional


@RULES.rule(
    "reward",
    cel=_everywhere(
        _FUNCTION,
        "module",
        "spec.reward: type custom needs either module (package.module:function) or file (/folder/file.py:function), "
        "and the other types neither: set one of them, or none.",
    ),
)
def custom_function(reward: Reward) -> Iterator[Problem]:
    for field, rule in _rules_of(reward):
        if rule.type != "custom":
            for name, value in (("module", rule.module), ("file", rule.file)):
                if value is not None:
                    yield problem(
                        f"{field}.{name}",
                        f'is "{value}" but spec.{field}.type is {rule.type}: set spec.{field}.type to custom or remove '
                        "it.",
                    )
        elif rule.module is None and rule.file is None:
            yield problem(
                f"{field}.module",
                f"is missing but spec.{field}.type is custom: set it to package.module:function, or file to "
                "/folder/file.py:function.",
            )
        elif rule.module is not None and rule.file is not None:
            yield problem(f"{field}.file", f'is "{rule.file}" but module is "{rule.module}": keep one of the two.')


@RULES.rule(
    "reward",
    cel=_everywhere(
        _ANSWERS, "answerRule", "spec.reward.answerRule: published needs type math: set that, or remove answerRule."
    ),
)
def answer_rule(reward: Reward) -> Iterator[Problem]:
    for field, rule in _rules_of(reward):
        if rule.answer_rule == "published" and rule.type != "math":
            yield problem(
                f"{field}.answerRule",
                f"is published but spec.{field}.type is {rule.type}, which compares no answers: set spec.{field}.type "
                "to math or remove it.",
            )


@RULES.rule(
    "reward",
    cel=_everywhere(_GROUP, "perGroup", "spec.reward.perGroup needs type custom: set that, or remove perGroup."),
)
def per_group(reward: Reward) -> Iterator[Problem]:
    for field, rule in _rules_of(reward):
        if rule.per_group and rule.type != "custom":
            yield problem(
                f"{field}.perGroup",
                f"is true but spec.{field}.type is {rule.type}, which scores one response at a time: set spec.{field}"
                ".type to custom or remove it.",
            )


@RULES.rule(
    "reward",
    cel=CelRule(
        "spec.reward",
        rule="!has(self.additional) || self.additional.all(a, self.additional.exists_one(b, b.name == a.name) "
        "&& a.name != (has(self.name) ? self.name : has(self.type) ? self.type : 'math'))",
        message="spec.reward.additional: two rewards have the same name: give each its own, other than "
        "spec.reward.name (the type if not set).",
        field_path=".additional",
    ),
)
def unique_names(reward: Reward) -> Iterator[Problem]:
    for index, additional in enumerate(reward.additional):
        if additional.name in reward.names[: index + 1]:
            yield problem(
                f"reward.additional[{index}].name",
                f'is "{additional.name}", which is also the name of another reward: give each its own name.',
            )
