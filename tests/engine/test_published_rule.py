"""The verdicts that are recorded as the published rule's are those of verl's own function."""

from typing import Any

import engines
import pytest
from answers import ANSWERS


@pytest.fixture(scope="module")
def published_rule() -> Any:
    return engines.load("dapo_trainer.verl_adapter.published_rule")


def test_the_recorded_verdicts_are_verls(published_rule: Any) -> None:
    score = engines.load("verl.utils.reward_score.math_dapo").compute_score
    verls = {(row.response, row.label): score(row.response, row.label)["acc"] for row in ANSWERS}
    assert {(row.response, row.label): row.published for row in ANSWERS} == verls


def test_answer_rule_published_is_verls_function(published_rule: Any) -> None:
    for row in ANSWERS:
        verdict = published_rule.judge(row.response, row.label)
        assert verdict.failure is None
        assert (verdict.correct, verdict.score) == (row.published, 1.0 if row.published else -1.0)
