"""The verdicts that are recorded as the published rule's are those of verl's own function."""

from answers import ANSWERS
from verl.utils.reward_score import math_dapo

from dapo_trainer.verl_adapter import published_rule


def test_the_recorded_verdicts_are_verls() -> None:
    verls = {(row.response, row.label): math_dapo.compute_score(row.response, row.label)["acc"] for row in ANSWERS}
    assert {(row.response, row.label): row.published for row in ANSWERS} == verls


def test_answer_rule_published_is_verls_function() -> None:
    for row in ANSWERS:
        verdict = published_rule.judge(row.response, row.label)
        assert verdict.failure is None
        assert (verdict.correct, verdict.score) == (row.published, 1.0 if row.published else -1.0)
