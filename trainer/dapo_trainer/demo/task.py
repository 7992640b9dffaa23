"""Two-digit addition with demonstrations that contain mistakes: pure text, no model.

A warm start on correct answers alone would leave nothing to explore. So some demonstrations show the working with an
occasional slip, and others guess the answer and are mostly wrong. Reinforcement learning then starts as from a real
base model: with a policy that can solve the task but does so too rarely, and a reason to think longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Habits:
    """How the demonstrations go wrong; shares and probabilities in [0, 1]."""

    guess_share: float = 0.3  # demonstrations without working
    guess_error: float = 0.9  # wrong guesses
    slip: float = 0.33  # a partial sum off by a little


def question(a: int, b: int) -> str:
    """The prompt for a pair."""
    return f"{a}+{b}?"


def _slipped(value: int, habits: Habits, random: Random) -> int:
    if random.random() >= habits.slip:
        return value
    return max(0, value + random.choice((-2, -1, 1, 2)))


def demonstration(a: int, b: int, habits: Habits, random: Random) -> str:
    """A demonstration for `question(a, b)`; its last line states the answer in the form that the reward reads."""
    if random.random() < habits.guess_share:
        guess = a + b if random.random() >= habits.guess_error else random.randint(20, 198)
        return f"Answer: {guess}"
    ones = _slipped(a % 10 + b % 10, habits, random)
    tens = _slipped(a // 10 + b // 10 + ones // 10, habits, random)
    return f"{a % 10}+{b % 10}={ones} {a // 10}+{b // 10}+{ones // 10}={tens} Answer: {tens * 10 + ones % 10}"


def problems(random: Random) -> Iterator[tuple[int, int]]:
    """Pairs of two-digit numbers, without end."""
    while True:
        yield random.randint(10, 99), random.randint(10, 99)
