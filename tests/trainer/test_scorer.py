"""Length penalty and what a response counts as: the parts of a reward besides the rule."""

import asyncio
from typing import Any

import pytest

from dapo_core.jobspec import Reward
from dapo_trainer.rewards.scorer import Scored, Scorer, SoftPenalty
from dapo_trainer.rewards.verdict import ResponseGroup
from dapo_trainer.verl_config.overrides import reward_settings

EXPECTED, CACHE = 16_384, 4_096


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [
        pytest.param(0, 0.0, id="empty"),
        pytest.param(EXPECTED - 1, 0.0, id="one below the free length"),
        pytest.param(EXPECTED, 0.0, id="at the free length"),
        pytest.param(EXPECTED + 1, -1 / CACHE, id="one above it"),
        pytest.param(EXPECTED + CACHE // 2, -0.5, id="half way"),
        pytest.param(EXPECTED + CACHE - 1, -1 + 1 / CACHE, id="one below the limit"),
        pytest.param(EXPECTED + CACHE, -1.0, id="at the limit"),
        pytest.param(EXPECTED + CACHE + 1, -1.0, id="past the limit"),
        pytest.param(10 * EXPECTED, -1.0, id="far past it, clamped"),
    ],
)
def test_penalty_is_the_papers_equation(tokens: int, penalty: float) -> None:
    assert SoftPenalty(EXPECTED, CACHE)(tokens) == pytest.approx(penalty)
    assert SoftPenalty(EXPECTED, CACHE, factor=0.5)(tokens) == pytest.approx(penalty / 2)


def settings(penalty: dict[str, Any] | None = None, **reward: Any) -> dict[str, Any]:
    made = reward_settings(Reward.model_validate(reward))
    return {"reward": made, "overlong": {"filter": True, "penalty": penalty}}


def score(
    with_settings: dict[str, Any],
    responses: list[str],
    lengths: list[int],
    truth: str = "4",
    extra_info: dict[str, Any] | None = None,
) -> list[Scored]:
    async def run() -> list[Scored]:
        scorer = Scorer(with_settings)
        try:
            return await scorer.score(ResponseGroup("2+2?", responses, truth, extra_info or {}), lengths)
        finally:
            await scorer.close()

    return asyncio.run(run())


def test_penalty_lowers_the_reward_and_never_the_accuracy() -> None:
    penalty = {"expected_tokens": 10, "cache_tokens": 10, "factor": 1.0}
    short, long, wrong = score(settings(penalty), ["Answer: 4", "Answer: 4", "Answer: 5"], [10, 25, 15])
    assert (short.reward, long.reward, wrong.reward) == (1.0, 0.0, -1.5)
    assert [s.verdict.correct for s in (short, long, wrong)] == [True, True, False]
    assert [s.verdict.score for s in (short, long, wrong)] == [1.0, 1.0, -1.0]
    assert all(s.counted for s in (short, long, wrong))


def test_without_a_penalty_length_does_not_matter() -> None:
    assert [s.reward for s in score(settings(), ["Answer: 4"] * 2, [1, 10**6])] == [1.0, 1.0]


@pytest.mark.parametrize(("rule", "right"), [("math", True), ("exact", False)])
def test_the_jobs_rule_is_used(rule: str, right: bool) -> None:
    [scored] = score(settings(type=rule), ["Answer: 4.0"], [3])
    assert scored.verdict.correct is right


@pytest.mark.parametrize(
    ("on_timeout", "counted"), [pytest.param("Exclude", False), pytest.param("Wrong", True)], ids=["Exclude", "Wrong"]
)
def test_a_check_that_failed_of_its_own(monkeypatch: pytest.MonkeyPatch, on_timeout: str, counted: bool) -> None:
    monkeypatch.setenv("PYTHONPATH", FAKES)
    custom = settings(type="custom", module="reward_functions:raises_for_odd", onTimeout=on_timeout)
    failed, fine = score(custom, ["1", "2"], [1, 1])
    assert failed.verdict.failure == "ValueError: odd"
    assert (failed.counted, failed.reward, failed.verdict.correct) == (counted, -1.0, False)
    assert fine.counted and fine.verdict.failure is None


SEVERAL = [
    {"name": "length", "weight": 0.5, "type": "custom", "module": "reward_functions:length"},
    {"name": "words", "weight": -1.0, "type": "exact"},
]


def test_several_rewards_are_summed_by_weight_and_the_main_one_says_what_is_correct(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", FAKES)
    right, wrong = score(settings(weight=2.0, additional=SEVERAL), ["Answer: 4", "Answer: 55555"], [1, 1])
    assert right.reward == right.verdict.score == pytest.approx(2 * 1 + 0.5 * 0.9 - 1 * 1)
    assert wrong.reward == pytest.approx(2 * -1 + 0.5 * 1.3 - 1 * -1)
    assert (right.verdict.correct, wrong.verdict.correct) == (True, False)
    assert right.terms == {"math": 1.0, "length": 0.9, "words": 1.0}
    assert right.verdict.details == {"math": 1.0, "length": 0.9, "words": 1.0, "length/long": True}
    assert right.verdict.predicted == "4"


def test_one_of_several_rewards_that_fails_leaves_the_sum_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", FAKES)
    broken = [{"name": "odd", "type": "custom", "module": "reward_functions:raises_for_odd"}]
    failed, right = score(settings(type="exact", additional=broken), ["1", "3"], [1, 1], truth="3")
    assert failed.verdict.failure == "odd: ValueError: odd" and not failed.counted and not failed.terms
    assert (failed.reward, failed.verdict.correct, right.reward, right.verdict.correct) == (-1.0, False, -1.0, True)
    [fine] = score(settings(type="exact", additional=broken), ["2"], [1], truth="2")
    assert fine.reward == 2.0 and fine.terms == {"exact": 1.0, "odd": 1.0}


def test_a_single_reward_may_have_a_weight() -> None:
    [scored] = score(settings(weight=0.5, name="answer"), ["Answer: 4"], [1])
    assert (scored.reward, scored.verdict.correct, scored.terms) == (0.5, True, {})


def test_a_row_s_extra_info_reaches_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", FAKES)
    custom = settings(type="custom", module="reward_functions:by_level")
    [scored] = score(custom, ["x"], [1], extra_info={"level": 7})
    assert scored.reward == 7.0


def test_one_length_a_response() -> None:
    with pytest.raises(ValueError, match="shorter"):
        score(settings(), ["Answer: 4", "Answer: 4"], [1])


FAKES = __file__.rpartition("/")[0] + "/fakes"
