"""Waits between tries."""

import random

import pytest

from dapo_core.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"),
    [(-1, 1.0, 0.0), (0, 1.0, 0.0), (1, 1.0, 0.5), (2, 1.0, 1.0), (4, 1.0, 4.0), (4, 0.0, 2.0), (5, 0.5, 6.0)],
)
def test_waits_double(failures: int, chance: float, seconds: float) -> None:
    assert Backoff(0.5, 30.0).delay(failures, chance) == seconds


@pytest.mark.parametrize("failures", [7, 33, 1025, 10**9])
def test_waits_have_a_limit_however_many_failures(failures: int) -> None:
    assert Backoff(0.5, 30.0).delay(failures) == 30.0


def test_waits_grow_to_a_limit_and_differ() -> None:
    delays = Backoff(0.5, 30.0)
    waits = [[delays.delay(failures, random.random()) for _ in range(50)] for failures in (1, 2, 5, 100)]
    for row, whole in zip(waits, (0.5, 1.0, 8.0, 30.0), strict=True):
        assert all(whole / 2 <= wait <= whole for wait in row) and len(set(row)) > 10
