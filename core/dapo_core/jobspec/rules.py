"""All rules between fields of a job: checked here in Python, and by the API server as the CRD's CEL."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from dapo_core.errors import Problem
from dapo_core.jobspec import algorithm_rules, operations_rules, reward_rules, training_rules
from dapo_core.jobspec.rule_table import CelRule, Rule
from dapo_core.naming import MAX_JOB_NAME, NAME_PATTERN

RULES: Final[tuple[Rule, ...]] = (
    *reward_rules.RULES,
    *training_rules.RULES,
    *algorithm_rules.RULES,
    *operations_rules.RULES,
)
# What was learned under other values of these groups is another run; the rest may change between attempts.
FROZEN_GROUPS: Final = ("model", "data", "reward", "algorithm", "optimizer", "batch", "verl_overrides")


def check(groups: Mapping[str, Any]) -> list[Problem]:
    """Problems between the fields of the given groups (keys are the spec's Python names).

    Rules that need a group that is not given are left out, so that one invalid group hides no mistake in the others.
    """
    return [
        problem
        for rule in RULES
        if all(name in groups for name in rule.groups)
        for problem in rule.check(*(groups[name] for name in rule.groups))
    ]


def _unchanged(field: str, why: str) -> CelRule:
    return CelRule(
        "spec",
        rule=f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        message=f"spec.{field} cannot be changed, because {why}",
        field_path=f".{field}",
        reason="FieldValueForbidden",
    )


CEL_RULES: Final[tuple[CelRule, ...]] = (
    CelRule(
        "",
        rule=f"size(self.metadata.name) <= {MAX_JOB_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
        message=f"metadata.name must have at most {MAX_JOB_NAME} lower-case letters, digits and dashes and start with "
        "a letter, so that the names of its pods fit Kubernetes' limit.",
    ),
    _unchanged("managedBy", "two controllers would own one job: create a new job."),
    _unchanged("runId", "its pods and checkpoints are those of one run: create a new job."),
    *(
        _unchanged(
            to_camel(group),
            "checkpoints of this run were trained with the old value: create a new job, with "
            "spec.checkpoints.resumeFrom set to this run to start from its weights.",
        )
        for group in FROZEN_GROUPS
    ),
    *(rule.cel for rule in RULES if rule.cel is not None),
)
