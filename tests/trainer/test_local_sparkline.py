"""Curves and bars of characters, and numbers as words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_trainer.local.sparkline import Glyphs, area, resample, scale, stacked
from dapo_trainer.local.words import clock, count, fit, number, percent, size, span

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


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        pytest.param(clock(59.9), "00:59", id="seconds"),
        pytest.param(clock(3723), "1:02:03", id="hours"),
        pytest.param(clock(90_061), "1d 01:01", id="days"),
        pytest.param(clock(-3), "00:00", id="never below zero"),
        pytest.param(span(0.84), "0.8 s", id="a short time"),
        pytest.param(span(300), "5 min", id="minutes"),
        pytest.param(span(9000), "2.5 h", id="some hours"),
        pytest.param(number(None), "-", id="no number"),
        pytest.param(number(float("nan")), "nan", id="not a number"),
        pytest.param(number(12345.6), "12,346", id="thousands"),
        pytest.param(number(2.0), "2", id="whole"),
        pytest.param(number(0.0412), "0.0412", id="small"),
        pytest.param(number(-0.5), "\N{MINUS SIGN}0.500", id="negative"),
        pytest.param(number(5e-4, 2), "5e-4", id="a learning rate"),
        pytest.param(percent(0.0743), "7.4 %", id="few percent"),
        pytest.param(percent(0.714), "71 %", id="percent"),
        pytest.param(percent(None), "-", id="no share"),
        pytest.param(count(1, "restart"), "1 restart", id="one"),
        pytest.param(count(2, "restart"), "2 restarts", id="many"),
        pytest.param(fit("abcdef", 4), "abc…", id="cut"),
        pytest.param(size(11_300_000), "11.3 MB", id="megabytes"),
        pytest.param(size(812), "812 B", id="bytes"),
    ],
)
def test_words(said: str, meant: str) -> None:
    assert said == meant
