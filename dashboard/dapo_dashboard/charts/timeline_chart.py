"""Attempts as bars and events as points, over time. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from dapo_core.db import AttemptRow, EventRow
from dapo_dashboard.charts import palette
from dapo_dashboard.plain import shown

ROW_PIXELS: Final = 30
_EVENTS: Final = "events"
_WELL: Final = ("Completed",)


def height(attempts: Sequence[AttemptRow]) -> int:
    """Pixels that the chart needs."""
    return 86 + ROW_PIXELS * (len(attempts) + 1)


def option(attempts: Sequence[AttemptRow], events: Sequence[EventRow], now: float) -> dict[str, Any]:
    """A thick line an attempt, named by how it ended; a point an event, warnings in another shape and colour."""
    rows = [_EVENTS, *(f"attempt {row.attempt}" for row in reversed(attempts))]
    return {
        "animation": False,
        "grid": {"left": 80, "right": 20, "top": 26, "bottom": 30, "outerBoundsMode": "none"},
        "tooltip": {"trigger": "item", "confine": True},
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "category", "data": rows, "axisTick": {"show": False}},
        "series": [
            *(_bar(row, now) for row in attempts),
            _points(events, "Normal", "circle", palette.MIXED),
            _points(events, "Warning", "diamond", palette.ALERT),
        ],
    }


def _bar(row: AttemptRow, now: float) -> dict[str, Any]:
    name = f"attempt {row.attempt}"
    end = row.ended_at if row.ended_at is not None else now
    colour = palette.MIXED if row.ended_at is None else palette.RIGHT if row.reason in _WELL else palette.WRONG
    return {
        "type": "line",
        "name": f"{name}: {row.reason or 'still running'}",
        "data": [[row.started_at * 1000, name], [end * 1000, name]],
        "lineStyle": {"width": 14, "color": colour, "cap": "butt"},
        "itemStyle": {"color": colour},
        "symbol": "none",
        "endLabel": {"show": True, "formatter": "{a}", "align": "right", "offset": [-8, -16], "fontSize": 11},
    }


def _points(events: Sequence[EventRow], kind: str, symbol: str, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": kind,
        "symbol": symbol,
        "symbolSize": 11 if kind == "Warning" else 8,
        "itemStyle": {"color": colour, "opacity": 0.85},
        "data": [
            {"name": shown(event.reason, 60), "value": [event.ts * 1000, _EVENTS]}
            for event in events
            if event.type == kind
        ],
        "z": 5,
    }
