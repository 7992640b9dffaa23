"""A bar a row with the spread of its runs, as in the paper's table. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from dapo_dashboard.charts import palette
from dapo_dashboard.plain import shown

ROW_PIXELS: Final = 38


def height(rows: int) -> int:
    """Pixels that the chart needs."""
    return 60 + ROW_PIXELS * rows


def option(values: Mapping[str, Sequence[float]], unit: str) -> dict[str, Any]:
    """Bars of the means from top to bottom, a line from least to most, and a point for each run."""
    means = [fmean(each) for each in values.values()]
    # The number stands by the name: within the bar, points would stand upon it.
    names = [f"{shown(name, 60)}\n{mean:.4g} {unit}".rstrip() for name, mean in zip(values, means, strict=True)]
    points = [[value, index] for index, each in enumerate(values.values()) for value in each]
    spread = [
        [{"coord": [min(each), index]}, {"coord": [max(each), index]}]
        for index, each in enumerate(values.values())
        if len(each) > 1
    ]
    return {
        "animation": False,
        "aria": {"enabled": True},
        "grid": {"left": 200, "right": 60, "top": 10, "bottom": 30, "outerBoundsMode": "none"},
        "tooltip": {"trigger": "item", "confine": True, "valueFormatter": "%.4g"},
        "xAxis": {"type": "value", "name": unit, "axisLabel": {"hideOverlap": True}},
        "yAxis": {
            "type": "category",
            "data": names,
            "inverse": True,
            "axisTick": {"show": False},
            "axisLabel": {"width": 185, "overflow": "truncate", "lineHeight": 15},
        },
        "series": [
            {
                "type": "bar",
                "name": "mean of the runs",
                "data": [float(f"{mean:.5g}") for mean in means],
                "barMaxWidth": 20,
                "itemStyle": {"color": palette.MIXED, "opacity": 0.85},
                "markLine": {
                    "silent": True,
                    "animation": False,
                    "symbol": ["none", "none"],
                    "label": {"show": False},
                    "lineStyle": {"color": palette.RESTART, "type": "solid", "width": 2},
                    "data": spread,
                },
            },
            {
                "type": "scatter",
                "name": "a run",
                "data": points,
                "symbolSize": 8,
                "itemStyle": {"color": palette.RESTART, "borderColor": "#fff", "borderWidth": 1},
                "z": 5,
            },
        ],
    }
