"""ECharts options of charts that show intervals: evaluations with their 95% intervals, ablations with the spread of
their runs, and attempts in time. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor
from statistics import fmean
from typing import Any, Final

from dapo_core.db import AttemptRow, EventRow
from dapo_dashboard.charts import palette
from dapo_dashboard.escaping import shown

Option = dict[str, Any]
Interval = Mapping[str, float | None]
"""`value`, `low` and `high` of an estimate; the bounds are None where one prompt gives none."""
_EVENTS: Final = "events"
_SUCCESS: Final = ("Completed",)


def evaluation_height(rows: int) -> int:
    """Pixels that a chart of so many estimates needs."""
    return 70 + 34 * rows


def evaluations_by_step(estimates: Mapping[str, Sequence[tuple[int, Interval]]]) -> Option:
    """mean@k by the checkpoint's step: a line with its intervals for each set."""
    return _base() | {
        "legend": {"type": "scroll", "top": 0, "left": 0, "textStyle": {"fontSize": 11.5}},
        "xAxis": {"type": "value", "minInterval": 1, "scale": True, "splitLine": {"show": False}},
        "yAxis": {"type": "value", **_extent(estimates), "axisLabel": {"formatter": "{value} %"}},
        "series": [_set_line(index, name, points) for index, (name, points) in enumerate(estimates.items())],
    }


def _set_line(index: int, name: str, points: Sequence[tuple[int, Interval]]) -> Option:
    color, dash = palette.run_color(index)
    bounds = [
        [[step, _percent(one["low"])], [step, _percent(one["high"])]] for step, one in points if one["low"] is not None
    ]
    return {
        "type": "line",
        "name": shown(name, 60),
        "color": color,
        "data": [[step, _percent(one["value"])] for step, one in sorted(points, key=lambda point: point[0])],
        "symbolSize": 8,
        "lineStyle": {"width": 2, "type": dash},
        "emphasis": {"disabled": True},
        "markLine": _spans(color, bounds),
    }


def evaluation_rows(estimates: Mapping[str, Interval]) -> Option:
    """A row for each estimate from top to bottom, such as pass@1, pass@2, or subsets."""
    rows = list(enumerate(estimates.values()))
    bounds = [[[_percent(one["low"]), at], [_percent(one["high"]), at]] for at, one in rows if one["low"] is not None]
    return _base() | {
        "grid": {"left": 110, "right": 60, "top": 12, "bottom": 30, "outerBoundsMode": "none"},
        "xAxis": {"type": "value", "min": 0, "max": 100, "axisLabel": {"formatter": "{value} %"}},
        "yAxis": _categories([shown(name, 40) for name in estimates], width=98),
        "series": [
            {
                "type": "scatter",
                "name": "estimate",
                "data": [[_percent(one["value"]), at] for at, one in rows],
                "symbolSize": 11,
                "itemStyle": {"color": palette.MIXED},
                "label": {"show": True, "position": "top", "formatter": "{@[0]}", "fontSize": 11},
                "markLine": _spans(palette.RESTART, bounds),
            }
        ],
    }


def ablation_height(rows: int) -> int:
    """Pixels that an ablation of so many groups needs."""
    return 60 + 38 * rows


def ablation(values: Mapping[str, Sequence[float]], unit: str) -> Option:
    """A bar for each group's mean from top to bottom, a line from its minimum to its maximum, and a point for each
    run."""
    means = [fmean(runs) for runs in values.values()]
    # The number is next to the name: within the bar, points would cover it.
    names = [f"{shown(name, 60)}\n{mean:.4g} {unit}".rstrip() for name, mean in zip(values, means, strict=True)]
    bounds = [[[min(runs), at], [max(runs), at]] for at, runs in enumerate(values.values()) if len(runs) > 1]
    return _base() | {
        "grid": {"left": 200, "right": 60, "top": 10, "bottom": 30, "outerBoundsMode": "none"},
        "xAxis": {"type": "value", "name": unit, "axisLabel": {"hideOverlap": True}},
        "yAxis": _categories(names, width=185, lineHeight=15),
        "series": [
            {
                "type": "bar",
                "name": "mean of the runs",
                "data": [float(f"{mean:.5g}") for mean in means],
                "barMaxWidth": 20,
                "itemStyle": {"color": palette.MIXED, "opacity": 0.85},
                "markLine": _spans(palette.RESTART, bounds),
            },
            {
                "type": "scatter",
                "name": "a run",
                "data": [[value, at] for at, runs in enumerate(values.values()) for value in runs],
                "symbolSize": 8,
                "itemStyle": {"color": palette.RESTART, "borderColor": "#fff", "borderWidth": 1},
                "z": 5,
            },
        ],
    }


def timeline_height(attempts: Sequence[AttemptRow]) -> int:
    """Pixels that the timeline of these attempts needs."""
    return 86 + 30 * (len(attempts) + 1)


def timeline(attempts: Sequence[AttemptRow], events: Sequence[EventRow], now: float) -> Option:
    """A bar for each attempt, labeled with how it ended; a point for each event, warnings in another shape and color.

    `now` is in Unix seconds."""
    rows = [_EVENTS, *(f"attempt {row.attempt}" for row in reversed(attempts))]
    marks = [(_EVENTS, event) for event in events]
    return {
        "animation": False,
        "grid": {"left": 80, "right": 20, "top": 26, "bottom": 30, "outerBoundsMode": "none"},
        "tooltip": {"trigger": "item", "confine": True},
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "category", "data": rows, "axisTick": {"show": False}},
        "series": [
            *(_attempt_bar(row, now) for row in attempts),
            event_points("Normal", marks, symbol="circle", color=palette.MIXED, size=8, opacity=0.85),
            event_points("Warning", marks, symbol="diamond", color=palette.ALERT, size=11, opacity=0.85),
        ],
    }


def _attempt_bar(row: AttemptRow, now: float) -> Option:
    name = f"attempt {row.attempt}"
    end = row.ended_at if row.ended_at is not None else now
    color = palette.MIXED if row.ended_at is None else palette.RIGHT if row.reason in _SUCCESS else palette.WRONG
    return {
        "type": "line",
        "name": f"{name}: {row.reason or 'still running'}",
        "data": [[row.started_at * 1000, name], [end * 1000, name]],
        "lineStyle": {"width": 14, "color": color, "cap": "butt"},
        "itemStyle": {"color": color},
        "symbol": "none",
        "endLabel": {"show": True, "formatter": "{a}", "align": "right", "offset": [-8, -16], "fontSize": 11},
    }


def event_points(
    kind: str, marks: Iterable[tuple[str, EventRow]], *, symbol: str, color: str, size: int, opacity: float
) -> Option:
    """The events of one kind as points, each in its lane, a category of the vertical axis."""
    return {
        "type": "scatter",
        "name": kind,
        "symbol": symbol,
        "symbolSize": size,
        "itemStyle": {"color": color, "opacity": opacity},
        "data": [
            {"name": shown(event.reason, 60), "value": [event.ts * 1000, lane]}
            for lane, event in marks
            if event.type == kind
        ],
        "z": 5,
    }


def _base() -> Option:
    return {
        "animation": False,
        "aria": {"enabled": True},
        "grid": {"left": 56, "right": 20, "top": 34, "bottom": 28, "outerBoundsMode": "none"},
        "tooltip": {"trigger": "item", "confine": True, "valueFormatter": "%.4g"},
    }


def _categories(names: Sequence[str], **label: Any) -> Option:
    return {
        "type": "category",
        "data": list(names),
        "inverse": True,
        "axisTick": {"show": False},
        "axisLabel": {"overflow": "truncate", **label},
    }


def _extent(estimates: Mapping[str, Sequence[tuple[int, Interval]]]) -> dict[str, float]:
    """Round percentages around all values and their intervals: what lies beyond the axis would not be drawn."""
    known = [share for points in estimates.values() for _, one in points for share in one.values() if share is not None]
    low, high = 100 * min(known, default=0.0), 100 * max(known, default=1.0)
    return {"min": max(0, floor(low / 10) * 10), "max": min(100, ceil(high / 10) * 10)}


def _spans(color: str, ends: Sequence[Any]) -> Option:
    return {
        "silent": True,
        "animation": False,
        "symbol": ["none", "none"],
        "label": {"show": False},
        "lineStyle": {"color": color, "type": "solid", "width": 2},
        "data": [[{"coord": low}, {"coord": high}] for low, high in ends],
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
