"""The points of curves as CSV."""

import math
from pathlib import Path

import pytest
from dashboard_data import Store

from dapo_core.errors import StoreError
from dapo_core.run.metrics import ENTROPY, REWARD_GENERATED
from dapo_dashboard.reads import raw_points
from dapo_dashboard.reads.cached_reader import CachedReader

METRICS = [REWARD_GENERATED, ENTROPY]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    filled = Store(tmp_path)
    filled.run("r", steps=5)
    filled.run("s", steps=2)
    return filled


@pytest.mark.parametrize(
    ("window", "steps"), [pytest.param(None, [1, 2, 3, 4, 5], id="all"), pytest.param((2, 4), [2, 3, 4], id="a range")]
)
def test_every_point_is_a_row(store: Store, window: tuple[int, int] | None, steps: list[int]) -> None:
    head, *rows = raw_points.points_csv(CachedReader(store.url), ["r"], METRICS, window).splitlines()
    assert head == f"run,step,attempt,unix_seconds,{REWARD_GENERATED},{ENTROPY}"
    assert [int(row.split(",")[1]) for row in rows] == steps
    assert all(math.isfinite(float(row.split(",")[5])) for row in rows)


def test_runs_that_are_compared_stand_one_below_the_other(store: Store) -> None:
    rows = raw_points.points_csv(CachedReader(store.url), ["r", "s"], METRICS).splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["r"] * 5 + ["s"] * 2


def test_too_many_points_are_left_to_the_command(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_points, "MAX_POINTS", 9)
    with pytest.raises(StoreError, match="dapo export r FOLDER"):
        raw_points.points_csv(CachedReader(store.url), ["r"], METRICS)
    assert raw_points.points_csv(CachedReader(store.url), ["r"], METRICS, (4, 5)).count("\n") == 3
