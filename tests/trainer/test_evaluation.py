"""Validation metrics of hand-made groups."""

import math
from typing import Any

import pytest

from dapo_core.run.checkpoint import Retention, judge
from dapo_trainer.groups.evaluated import Evaluated, validation_metrics
from dapo_trainer.rewards.verdict import Verdict, failed


def prompt(answers: str, truth: str = "a", name: str = "set", lengths: list[int] | None = None) -> Evaluated:
    """One letter a response: its answer; `-` states none."""
    verdicts = [Verdict(1.0 if a == truth else -1.0, a == truth, None if a == "-" else a) for a in answers]
    tokens = lengths if lengths is not None else [len(answers)] * len(answers)
    return Evaluated(name, verdicts, tokens, [n == 4 for n in tokens])


@pytest.mark.parametrize(
    ("answers", "mean", "best", "majority"),
    [
        pytest.param("aaaa", 1.0, 1.0, 1.0, id="all right"),
        pytest.param("bbcc", 0.0, 0.0, 0.0, id="none right"),
        pytest.param("aaab", 0.75, 1.0, 1.0, id="most right"),
        pytest.param("abbb", 0.25, 1.0, 0.0, id="one right"),
        pytest.param("aabc", 0.5, 1.0, 1.0, id="largest minority is right"),
        pytest.param("aabb", 0.5, 1.0, 1.0, id="tie, right answer first"),
        pytest.param("bbaa", 0.5, 1.0, 0.0, id="tie, wrong answer first"),
        pytest.param("---a", 0.25, 1.0, 1.0, id="no answer does not vote"),
        pytest.param("----", 0.0, 0.0, 0.0, id="no answers at all"),
        pytest.param("a", 1.0, 1.0, 1.0, id="one sample"),
    ],
)
def test_one_prompt(answers: str, mean: float, best: float, majority: float) -> None:
    k = len(answers)
    assert validation_metrics([prompt(answers)]) == {
        f"val-core/set/acc/mean@{k}": mean,
        f"val-core/set/acc/best@{k}/mean": best,
        f"val-core/set/acc/maj@{k}/mean": majority,
        "val-aux/set/response_length/mean": k,
        "val-aux/set/response_length/clip_ratio": k == 4,
    }


def test_a_failed_check_is_wrong_and_does_not_vote() -> None:
    group = Evaluated("set", [failed("hung"), failed("hung"), Verdict(1.0, True, "a")], [1, 1, 1], [False] * 3)
    metrics = validation_metrics([group])
    assert metrics["val-core/set/acc/mean@3"] == pytest.approx(1 / 3)
    assert metrics["val-core/set/acc/maj@3/mean"] == 1.0


def test_sets_are_apart_and_prompts_weigh_alike() -> None:
    groups = [prompt("aa"), prompt("bb", lengths=[4, 4]), prompt("bbbb", truth="b", name="other"), prompt("ab")]
    metrics = validation_metrics(groups)
    assert metrics["val-core/set/acc/mean@2"] == 0.5
    assert metrics["val-core/other/acc/mean@4"] == 1.0
    assert metrics["val-aux/set/acc/mean@2/standard_error"] == pytest.approx(math.sqrt(1 / 12)), "of 1, 0 and 0.5"
    assert "val-aux/other/acc/mean@4/standard_error" not in metrics, "one prompt has no spread"
    assert metrics["val-aux/set/response_length/mean"] == pytest.approx((2 + 2 + 4 + 4 + 2 + 2) / 6)
    assert metrics["val-aux/set/response_length/clip_ratio"] == pytest.approx(2 / 6)
    assert list(metrics) == sorted(metrics, key=lambda name: name.split("/")[1]), "a set's numbers stand together"


@pytest.mark.parametrize("groups", [pytest.param([], id="nothing was validated")])
def test_no_prompts(groups: list[Any]) -> None:
    assert validation_metrics(groups) == {}


def test_no_responses_are_no_number() -> None:
    assert math.isnan(validation_metrics([Evaluated("set", [], [], [])])["val-aux/set/response_length/mean"])


@pytest.mark.parametrize("statistic", ["mean@2", "best@2", "maj@2"])
def test_the_best_by_each_statistic_that_validation_records(statistic: str) -> None:
    """`bestMetric` is written without the `/mean` that verl's names of best@k and maj@k end with."""
    right, wrong = Verdict(1.0, True, "1"), Verdict(-1.0, False, "2")
    checkpoints = {
        step: validation_metrics([Evaluated("aime", verdicts, (3, 3), (False, False))])
        for step, verdicts in {5: (right, right), 10: (wrong, wrong), 15: (wrong, wrong)}.items()
    }
    verdicts = judge(Retention(1, 1, f"val-core/aime/acc/{statistic}"), checkpoints)
    assert [verdict.step for verdict in verdicts if verdict.keep] == [15, 5]
