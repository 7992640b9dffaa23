"""A rule between fields: its check in Python with its sentences, and its CEL for the API server, side by side.

The API server sees the file, not what a preset fills in: CEL either uses the preset's value or asks `has()`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dapo_core.errors import Problem
from dapo_core.jobspec.losses import LOSSES
from dapo_core.jobspec.presets import PRESETS

RuleCheck = Callable[..., Iterator[Problem]]


@dataclass(frozen=True)
class CelRule:
    """One x-kubernetes-validations entry of the object at `path`, the smallest that holds all of the rule's fields;
    [] stands for the entries of a list.

    The message is fixed: the API server estimates one that is made from numbers, whose text may be of any length, at
    far more than its cost budget.
    """

    path: str
    rule: str
    message: str
    field_path: str | None = None
    reason: str = "FieldValueInvalid"

    def entry(self) -> dict[str, Any]:
        """As it stands in the CRD."""
        values = {"rule": self.rule, "message": self.message, "fieldPath": self.field_path, "reason": self.reason}
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class Rule:
    """`check` takes `groups` of the spec, by their Python names and in that order, and yields what is wrong.

    `cel` is None where CEL cannot say it: then only `dapo plan`, `dapo run` and the operator check the rule.
    """

    groups: tuple[str, ...]
    check: RuleCheck
    cel: CelRule | None


class RuleTable(list[Rule]):
    """Rules in the order in which their problems are reported."""

    def rule(self, *groups: str, cel: CelRule | None) -> Callable[[RuleCheck], RuleCheck]:
        """Adds the decorated check to this table."""

        def add(check: RuleCheck) -> RuleCheck:
            self.append(Rule(groups, check, cel))
            return check

        return add


def problem(field: str, sentence: str) -> Problem:
    """What a check yields: `sentence` completes "spec.{field} ..."."""
    return Problem(f"spec.{field}", f"spec.{field} {sentence}")


def or_default(field: str, default: object) -> str:
    """CEL for the value of `field`, such as self.steps, or for the default where the file does not name it."""
    return f"(has({field}) ? {field} : {default})"


def or_preset(group: str, field: str, holder: str | None = None) -> str:
    """CEL for a field's value: what the file says, else the loss, else the preset. `holder` is how CEL names the group,
    which for a field that differs between presets or losses has to be the algorithm's own."""
    dapo, grpo = PRESETS["dapo"][group][field], PRESETS["grpo"][group][field]
    default = str(dapo) if dapo == grpo else f"(has(self.preset) && self.preset == 'grpo' ? {grpo} : {dapo})"
    for loss, values in LOSSES.items() if group == "algorithm" else ():
        if field in values:
            default = f"(has(self.loss) && self.loss == '{loss}' ? {values[field]} : {default})"
    return or_default(f"{holder or f'self.{group}'}.{field}", default)
