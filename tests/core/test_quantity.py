"""Kubernetes quantities: what `dapo plan` and the operator take them for, and that Kubernetes' client agrees."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils import parse_quantity

from dapo_core.quantity import GIB, amount


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        (4, Fraction(4)),
        ("500m", Fraction(1, 2)),
        ("3n", Fraction(3, 10**9)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("16Gi", Fraction(16 * GIB)),
        ("1.5Ti", Fraction(1536 * GIB)),
        ("2k", Fraction(2000)),
        ("128Ki", Fraction(128 * 2**10)),
        ("1e3", Fraction(1000)),
        ("1E", Fraction(10**18)),
        ("1Ei", Fraction(2**60)),
    ],
    ids=str,
)
def test_quantities(quantity: object, number: Fraction) -> None:
    assert amount(quantity) == number
    assert Fraction(parse_quantity(str(quantity))) == number


@pytest.mark.parametrize(
    "quantity", ["", "much", "1.2.3", "-1", "5gi", "5K", "5mi", "1e3Gi", "1e400", "1_0", "nan", " 1", None], ids=str
)
def test_no_quantities(quantity: object) -> None:
    with pytest.raises(ValueError, match="is not a valid quantity"):
        amount(quantity)


@pytest.mark.parametrize("end", ["!", "", "Gi"])
@pytest.mark.parametrize("length", [33, 16_000, 100_000])
def test_a07_a_long_quantity_is_refused_at_once(length: int, end: str) -> None:
    with pytest.raises(ValueError, match="not a valid quantity") as error:
        amount("1" * length + end)
    assert len(str(error.value)) < 100


@given(st.text("0123456789.eE+-mkKMGTPi!", max_size=32))
def test_a07_any_quantity_is_a_number_or_an_error(text: str) -> None:
    with suppress(ValueError):
        assert amount(text) >= 0
