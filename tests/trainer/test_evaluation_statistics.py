"""Estimates of a model from scored groups: pass@k without bias, intervals that hold what they promise."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_trainer.evaluate.statistics import IntervalEstimate, by_subset, pass_at, powers, summarise
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.rewards.verdict import failed, right_or_wrong


def group(right: Sequence[bool], index: int = 0, tokens: int = 10) -> Evaluated:
    verdicts = [right_or_wrong(ok, "1" if ok else str(2 + i)) for i, ok in enumerate(right)]
    return Evaluated("set", verdicts, [tokens] * len(verdicts), [tokens >= 40] * len(verdicts), index)


def groups(*correct: int, samples: int = 4) -> list[Evaluated]:
    return [group([i < c for i in range(samples)], index) for index, c in enumerate(correct)]


@pytest.mark.parametrize(
    ("k", "samples", "correct", "expected"),
    [
        pytest.param(1, 4, 1, 0.25, id="pass@1 is the mean"),
        pytest.param(2, 4, 1, 0.5, id="1 - C(3,2)/C(4,2)"),
        pytest.param(4, 4, 1, 1.0, id="all of them hold the right one"),
        pytest.param(4, 4, 0, 0.0, id="none is right"),
        pytest.param(
            8,
            32,
            3,
            1 - (29 * 28 * 27 * 26 * 25 * 24 * 23 * 22) / (32 * 31 * 30 * 29 * 28 * 27 * 26 * 25),
            id="by hand",
        ),
        pytest.param(3, 4, 2, 1.0, id="more draws than wrong ones"),
    ],
)
def test_pass_at(k: int, samples: int, correct: int, expected: float) -> None:
    assert pass_at(k, samples, correct) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 5], ids=["none", "more than were sampled"])
def test_pass_at_needs_that_many_samples(k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} cannot be estimated from 4 samples"):
        pass_at(k, 4, 1)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_is_the_mean_over_all_draws(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    draws = [any(draw) for draw in combinations(right, k)]
    assert pass_at(k, len(right), sum(right)) == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (32, [1, 2, 4, 8, 16, 32])],
    ids=["one", "two", "no power of two", "the paper's"],
)
def test_ks(samples: int, expected: list[int]) -> None:
    assert powers(samples) == expected


def test_a_summary() -> None:
    verdicts = [right_or_wrong(True, "1"), right_or_wrong(False, None), failed("hung"), right_or_wrong(False, "3")]
    odd = Evaluated("set", verdicts, [10, 20, 30, 40], [False, False, False, True], 2)
    found = summarise([*groups(4, 0), odd])
    assert (found.prompts, found.samples) == (3, 4)
    assert found.mean.value == pytest.approx(5 / 12)
    assert found.majority.value == pytest.approx(2 / 3), "the third prompt's first answer wins its tie"
    assert {k: one.value for k, one in found.pass_at.items()} == pytest.approx({1: 5 / 12, 2: 0.5, 4: 2 / 3})
    assert found.sampling_error == pytest.approx((0.25 * 0.75 / 3) ** 0.5 / 3)
    assert (found.lengths.mean, found.lengths.median, found.lengths.longest) == pytest.approx((180 / 12, 10, 40))
    assert found.truncated == pytest.approx(1 / 12)
    assert found.unstated == pytest.approx(2 / 12) and found.failures == 1


def test_one_sample_of_one_prompt_has_no_uncertainty_to_tell() -> None:
    found = summarise([group([True])])
    assert (found.mean, found.sampling_error) == (IntervalEstimate(1.0), None)


def test_the_same_groups_give_the_same_interval() -> None:
    assert summarise(groups(0, 1, 2, 4)) == summarise(groups(0, 1, 2, 4))


@pytest.mark.parametrize("samples", [1, 32], ids="{}-samples".format)
def test_the_interval_covers_other_prompts_of_the_kind(samples: int) -> None:
    """100 benchmarks of 40 prompts, whose difficulties differ: the true mean is inside about 95 % of the time."""
    random, inside, widths = np.random.default_rng(1), 0, []
    for trial in range(100):
        chances = random.beta(0.5, 0.5, size=40)
        drawn = [group(list(random.random(samples) < chance)) for chance in chances]
        found = summarise(drawn, seed=trial).mean
        assert found.low is not None and found.high is not None
        inside += found.low <= 0.5 <= found.high
        widths.append(found.high - found.low)
    assert 0.88 <= inside / 100 <= 0.99
    # Prompts, not responses, are what there is evidence of: 32 times the samples do not make it 5.7 times narrower.
    assert np.mean(widths) > 0.2


def test_the_sampling_error_is_that_of_drawing_again() -> None:
    random, chances = np.random.default_rng(2), np.linspace(0.05, 0.95, 20)
    trials = [summarise([group(list(random.random(8) < c)) for c in chances]) for _ in range(200)]
    spread = np.std([trial.mean.value for trial in trials])
    told = np.mean([trial.sampling_error for trial in trials if trial.sampling_error is not None])
    assert told == pytest.approx(spread, rel=0.15)


def test_subsets() -> None:
    found = by_subset(groups(4, 0, 2), ["II", "I", "II"])
    assert list(found) == ["I", "II"]
    assert (found["I"].mean.value, found["II"].mean.value) == (0.0, 0.75)
    levels = ["level 10", "level 9", "10", "9", "none"]
    assert list(by_subset(groups(1, 1, 1, 1, 1), levels)) == ["9", "10", "level 9", "level 10", "none"]
