"""Length penalty and what a response counts as: the parts of a reward besides the rule."""

import asyncio
from typing import Any

import pytest

from dapo_trainer.rewards.scorer import Scored, Scorer, SoftPenalty

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
    return {
        "reward": {
            "type": "math",
            "answer_rule": "value",
            "module": None,
            "timeout_seconds": 10.0,
            "on_timeout": "Exclude",
            **reward,
        },
        "overlong": {"filter": True, "penalty": penalty},
    }


def score(with_settings: dict[str, Any], responses: list[str], lengths: list[int], truth: str = "4") -> list[Scored]:
    async def run() -> list[Scored]:
        scorer = Scorer(with_settings)
        try:
            return await scorer.score("2+2?", responses, lengths, truth)
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
    custom = settings(type="custom", module="reward_functions:raises_for_odd", on_timeout=on_timeout)
    failed, fine = score(custom, ["1", "2"], [1, 1])
    assert failed.verdict.failure == "ValueError: odd"
    assert (failed.counted, failed.reward, failed.verdict.correct) == (counted, -1.0, False)
    assert fine.counted and fine.verdict.failure is None


def test_one_length_a_response() -> None:
    with pytest.raises(ValueError, match="shorter"):
        score(settings(), ["Answer: 4", "Answer: 4"], [1])


FAKES = __file__.rpartition("/")[0] + "/fakes"
