"""The demo's task: demonstrations are consistent but for the slips they are meant to have."""

import re
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_trainer.demo.prepare import rows
from dapo_trainer.demo.task import Habits, demonstration, problems, question
from dapo_trainer.rewards.rule_rewards import math

NO_MISTAKES = Habits(guess_share=0.0, guess_error=0.0, slip=0.0)
WORKED = re.compile(r"(\d)\+(\d)=(\d+) (\d)\+(\d)\+(\d)=(\d+) Answer: (\d+)")
two_digits = st.integers(10, 99)


@given(a=two_digits, b=two_digits, seed=st.integers(0, 1000))
def test_without_bad_habits_every_demonstration_is_right(a: int, b: int, seed: int) -> None:
    text = demonstration(a, b, NO_MISTAKES, Random(seed))
    assert math(text, str(a + b)).correct
    assert WORKED.fullmatch(text)


@given(a=two_digits, b=two_digits, seed=st.integers(0, 1000))
def test_an_answer_follows_from_its_working_even_where_that_slips(a: int, b: int, seed: int) -> None:
    text = demonstration(a, b, Habits(guess_share=0.0, slip=0.9), Random(seed))
    found = WORKED.fullmatch(text)
    assert found
    one_a, one_b, ones, ten_a, ten_b, carry, tens, answer = map(int, found.groups())
    assert (ten_a * 10 + one_a, ten_b * 10 + one_b) == (a, b)
    assert carry == ones // 10 and answer == tens * 10 + ones % 10
    assert abs(ones - one_a - one_b) <= 2 and abs(tens - ten_a - ten_b - carry) <= 2


@given(a=two_digits, b=two_digits, seed=st.integers(0, 1000))
def test_a_guess_shows_no_working(a: int, b: int, seed: int) -> None:
    assert re.fullmatch(r"Answer: \d+", demonstration(a, b, Habits(guess_share=1.0), Random(seed)))


def test_pupils_are_right_about_one_time_in_three() -> None:
    chance = Random(0)
    pairs = list(islice(problems(chance), 4000))
    right = sum(math(demonstration(a, b, Habits(), chance), str(a + b)).correct for a, b in pairs)
    assert 0.28 < right / len(pairs) < 0.42


def test_prompts_and_demonstrations_fit_the_examples_limits() -> None:
    chance = Random(1)
    for a, b in islice(problems(chance), 2000):
        assert len(question(a, b)) <= 6 and len(demonstration(a, b, Habits(), chance)) < 40


@pytest.mark.parametrize("count", [0, 1, 64])
def test_rows_leave_out_what_is_held_out(count: int) -> None:
    held_out = set(islice(problems(Random(5)), 64))
    made = rows("train", count, Random(5), held_out)
    assert len(made) == count
    asked = {question(a, b) for a, b in held_out}
    for index, row in enumerate(made):
        prompt: Any = row["prompt"]
        [message] = prompt
        assert message["content"] not in asked and row["extra_info"] == {"index": index}
        a, b = message["content"].rstrip("?").split("+")
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(int(a) + int(b))}


def test_the_same_seed_makes_the_same_rows() -> None:
    assert rows("a", 50, Random(3), set()) == rows("a", 50, Random(3), set())
    assert rows("a", 50, Random(3), set()) != rows("a", 50, Random(4), set())
