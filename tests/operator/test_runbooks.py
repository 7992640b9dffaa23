"""Everything the operator can say has an entry in the runbooks of docs/operator.md."""

import re
from pathlib import Path
from typing import get_args

from runbooks import ATTEMPT_REASONS, RUNBOOKS

import dapo_operator.jobs.planner
from dapo_core.run.reasons import OF_ERROR, OF_EXIT_CODE, Reason
from dapo_core.run.status import ConditionType

PLANNER = Path(dapo_operator.jobs.planner.__file__).parent
SAID = re.compile(r"\b(?:set_condition|clear_condition)\(\s*\"(\w+)\",\s*(?:(?:True|False),\s*)?Reason\.(\w+)")


def test_every_condition_has_a_runbook() -> None:
    assert set(RUNBOOKS) == set(get_args(ConditionType))


def test_every_reason_that_a_condition_is_given_is_in_its_runbook() -> None:
    said = {match.groups() for path in PLANNER.glob("*.py") for match in SAID.finditer(path.read_text())}
    assert len(said) > 20
    missing = [(kind, name) for kind, name in said if getattr(Reason, name) not in RUNBOOKS[kind].reasons]  # type: ignore[index]
    assert missing == []


def test_every_reason_of_an_exit_code_is_documented() -> None:
    documented = ATTEMPT_REASONS.keys() | RUNBOOKS["Failed"].reasons.keys() | RUNBOOKS["Degraded"].reasons.keys()
    assert {*OF_EXIT_CODE.values(), *(end.reason for end in OF_ERROR.values())} <= documented


def test_every_reason_has_a_runbook() -> None:
    documented = set(ATTEMPT_REASONS).union(*(runbook.reasons for runbook in RUNBOOKS.values()))
    assert set(Reason) <= documented
