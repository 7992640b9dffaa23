"""Weights of training files: how often each row occurs in an epoch."""

from collections import Counter
from itertools import accumulate

import pytest
from builders import job
from hypothesis import given
from hypothesis import strategies as st

from dapo_core.errors import SpecError
from dapo_trainer.data.prompt_files import draws, epoch
from dapo_trainer.preflight import _check_weights


@pytest.mark.parametrize(
    ("rows", "weights", "wanted"),
    [
        pytest.param([100, 100], [1.0, 1.0], [100, 100], id="equal"),
        pytest.param([100, 300], [1.0, 1.0], [300, 300], id="a small file as often as a large one"),
        pytest.param([100, 300], [1.0, 3.0], [100, 300], id="by size"),
        pytest.param([1000, 1000], [3.0, 1.0], [3000, 1000], id="three to one"),
        pytest.param([1000, 10], [0.9, 0.1], [1000, 111], id="a tenth of the prompts"),
        pytest.param([7], [0.5], [7], id="one file"),
    ],
)
def test_draws(rows: list[int], weights: list[float], wanted: list[int]) -> None:
    assert draws(rows, weights) == wanted


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 10)), min_size=1, max_size=5),
    st.integers(0, 2**31 - 1),
)
def test_every_row_occurs_and_those_of_a_file_equally_often(files: list[tuple[int, float]], seed: int) -> None:
    rows, weights = [count for count, _ in files], [weight for _, weight in files]
    made = epoch(rows, weights, seed)
    assert made == epoch(rows, weights, seed)
    counts, starts = Counter(made), [0, *accumulate(rows)]
    for start, size, drawn in zip(starts, rows, draws(rows, weights), strict=False):
        occurrences = [counts[row] for row in range(start, start + size)]
        assert sum(occurrences) == drawn and min(occurrences) >= 1 and max(occurrences) - min(occurrences) <= 1
    shares = [drawn / len(made) for drawn in draws(rows, weights)]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=len(rows) / len(made))


def test_the_seed_chooses_which_rows_occur_once_more() -> None:
    assert epoch([10, 100], [1.0, 6.5], 1) != epoch([10, 100], [1.0, 6.5], 2)


def test_an_epoch_that_is_too_long_is_rejected() -> None:
    sources = [{"source": "file:///a", "weight": 1000.0}, {"source": "file:///b", "weight": 0.001}]
    spec = job(data={"train": sources}).spec
    with pytest.raises(SpecError) as error:
        _check_weights(spec, [17_000, 17_000])
    assert str(error.value) == (
        "spec.data.train[1].weight is 0.001 for 17,000 prompts: until each of them was drawn once, an epoch has "
        "17,000,017,000 prompts, more than 5,000,000: raise it, or use fewer prompts of this file."
    )
    _check_weights(spec, [3, 3])
