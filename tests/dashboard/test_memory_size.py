"""Estimates of memory against what Python allocates."""

import tracemalloc
from collections.abc import Callable

import pytest

from dapo_core.db import Bucket
from dapo_core.run.entries import Sample
from dapo_dashboard.reads.cached_reader import size_of


def curves() -> object:
    return {
        name: [Bucket(step, step, step + 0.1, step + 0.2, step + 0.3, step + 0.4, 1, None) for step in range(5_000)]
        for name in ("a", "b")
    }


def texts() -> object:
    return [Sample("question" * 20, f"{number} " * 2_000, "42", 1.0, 1.0, 900, False) for number in range(200)]


@pytest.mark.parametrize("make", [curves, texts])
def test_an_estimate_is_near_what_is_allocated(make: Callable[[], object]) -> None:
    tracemalloc.start()
    value = make()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 < size_of(value) / allocated < 2


def test_nothing_takes_little() -> None:
    assert size_of(None) == size_of(1.5) < size_of([]) + 1 < 200
