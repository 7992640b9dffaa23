"""Evaluations as ECharts options: each estimate as a point on its 95% interval. Pure."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any, Final

from dapo_dashboard.charts import palette
from dapo_dashboard.plain import shown

ROW_PIXELS: Final = 34
Estimate = Mapping[str, float | None]


def height(rows: int) -> int:
    """Pixels that so many rows need."""
    return 70 + ROW_PIXELS * rows


def of_steps(estimates: Mapping[str, Sequence[tuple[int, Estimate]]]) -> dict[str, Any]:
    """mean@k by the checkpoint's step, a line with its interval for each set."""
    series: list[dict[str, Any]] = []
    for index, (name, points) in enumerate(estimates.items()):
        colour, dash = palette.run_colour(index)
        line = {"type": "line", "name": shown(name, 60), "color": colour}
        values = [[step, _percent(estimate["value"])] for step, estimate in sorted(points, key=lambda each: each[0])]
        series.append(
            line
            | {
                "data": values,
                "symbolSize": 8,
                "lineStyle": {"width": 2, "type": dash},
                "emphasis": {"disabled": True},
                "markLine": _spans(
                    colour,
                    [
                        [[step, _percent(one["low"])], [step, _percent(one["high"])]]
                        for step, one in points
                        if one["low"] is not None
                    ],
                ),
            }
        )
    return _base() | {
        "legend": {"type": "scroll", "top": 0, "left": 0, "textStyle": {"fontSize": 11.5}},
        "xAxis": {"type": "value", "minInterval": 1, "scale": True, "splitLine": {"show": False}},
        "yAxis": {"type": "value", **_extent(estimates), "axisLabel": {"formatter": "{value} %"}},
        "series": series,
    }


def of_rows(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    """A row for each estimate from top to bottom, such as pass@1, pass@2, or subsets."""
    names = [shown(name, 40) for name in estimates]
    rows = list(enumerate(estimates.values()))
    return _base() | {
        "grid": {"left": 110, "right": 60, "top": 12, "bottom": 30, "outerBoundsMode": "none"},
        "xAxis": {"type": "value", "min": 0, "max": 100, "axisLabel": {"formatter": "{value} %"}},
        "yAxis": {
            "type": "category",
            "data": names,
            "inverse": True,
            "axisTick": {"show": False},
            "axisLabel": {"width": 98, "overflow": "truncate"},
        },
        "series": [
            {
                "type": "scatter",
                "name": "estimate",
                "data": [[_percent(one["value"]), at] for at, one in rows],
                "symbolSize": 11,
                "itemStyle": {"color": palette.MIXED},
                "label": {"show": True, "position": "top", "formatter": "{@[0]}", "fontSize": 11},
                "markLine": _spans(
                    palette.RESTART,
                    [
                        [[_percent(one["low"]), at], [_percent(one["high"]), at]]
                        for at, one in rows
                        if one["low"] is not None
                    ],
                ),
            }
        ],
    }


def _base() -> dict[str, Any]:
    return {
        "animation": False,
        "aria": {"enabled": True},
        "grid": {"left": 56, "right": 20, "top": 34, "bottom": 28, "outerBoundsMode": "none"},
        "tooltip": {"trigger": "item", "confine": True, "valueFormatter": "%.4g"},
    }


def _extent(estimates: Mapping[str, Sequence[tuple[int, Estimate]]]) -> dict[str, float]:
    """Round percents about all values and their intervals: what reaches beyond the axis would not be drawn."""
    known = [share for points in estimates.values() for _, one in points for share in one.values() if share is not None]
    low, high = 100 * min(known, default=0.0), 100 * max(known, default=1.0)
    return {"min": max(0, floor(low / 10) * 10), "max": min(100, ceil(high / 10) * 10)}


def _spans(colour: str, ends: Sequence[Any]) -> dict[str, Any]:
    return {
        "silent": True,
        "animation": False,
        "symbol": ["none", "none"],
        "label": {"show": False},
        "lineStyle": {"color": colour, "type": "solid", "width": 2},
        "data": [[{"coord": low}, {"coord": high}] for low, high in ends],
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
