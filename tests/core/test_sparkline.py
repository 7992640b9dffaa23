"""Curves and bars of characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_core.run.formatting import Glyphs, area, resample, scale, sparkline, stacked

RISING = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("rows", "glyphs", "drawn"),
    [
        pytest.param(1, Glyphs(), ["⣀⣤⣶⣿"], id="dots"),
        pytest.param(2, Glyphs(), ["  ⣠⣾", "⣠⣾⣿⣿"], id="dots in two rows"),
        pytest.param(1, Glyphs(braille=False), ["▁▂▃▄▅▆▇█"], id="blocks"),
        pytest.param(1, Glyphs(ascii=True), ["..::::##"], id="ascii"),
    ],
)
def test_area(rows: int, glyphs: Glyphs, drawn: list[str]) -> None:
    assert area(RISING, 0.0, 7.0, rows, glyphs) == drawn


def test_an_odd_column_is_filled_up() -> None:
    assert [len(row) for row in area([1.0, 2.0, 3.0], 1.0, 3.0, 1, Glyphs())] == [2]


@pytest.mark.parametrize(
    ("points", "count", "first", "last", "values"),
    [
        pytest.param([], 3, 0, 0, [], id="nothing"),
        pytest.param([(4, 2.0)], 3, 4, 4, [2.0, 2.0, 2.0], id="one point"),
        pytest.param([(0, 0.0), (2, 2.0)], 3, 0, 2, [0.0, 1.0, 2.0], id="between points"),
        pytest.param([(0, 0.0), (1, 2.0), (2, 4.0), (3, 6.0)], 2, 0, 3, [1.0, 5.0], id="means"),
        pytest.param([(2, 1.0), (4, 3.0)], 5, 0, 4, [1.0, 1.0, 1.0, 2.0, 3.0], id="before the first point"),
    ],
)
def test_resample(points: list[tuple[int, float]], count: int, first: int, last: int, values: list[float]) -> None:
    assert resample(points, count, first, last) == values


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 6), st.booleans())
def test_any_curve_can_be_drawn(values: list[float], rows: int, braille: bool) -> None:
    glyphs = Glyphs(braille=braille)
    drawn = area(values, *scale(values), rows, glyphs)
    assert {len(row) for row in drawn} == {-(-len(values) // glyphs.columns)}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(6, 80))
def test_a_bar_is_as_wide_as_it_should_be(shares: list[float], width: int) -> None:
    cells = stacked(shares, width)
    assert sum(cells) == (width if sum(shares) > 0 else 0)
    assert all(cell >= (1 if share > 0 else 0) for cell, share in zip(cells, shares, strict=True))


LINES = {"none": ([], ""), "flat": ([2, 2], "▄▄"), "rising": ([0, 1], "▁█"), "averaged": ([0, 0, 1, 1], "▁█")}


@pytest.mark.parametrize(("values", "line"), LINES.values(), ids=LINES.keys())
def test_sparklines(values: list[float], line: str) -> None:
    assert sparkline(values, 2) == line
