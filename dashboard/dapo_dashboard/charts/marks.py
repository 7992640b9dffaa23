"""What happened to a run, as marks on its charts: lines with symbols, and bands where values were not finite. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dapo_core.db import AttemptRow, CheckpointRow
from dapo_dashboard.charts import palette
from dapo_dashboard.charts.buckets import flagged_ranges
from dapo_dashboard.charts.series import BOTTOM, HEIGHT, TOP, Option, Placing, PlotLine

Kind = Literal["restart", "suspend", "checkpoint", "alert"]


@dataclass(frozen=True)
class Mark:
    """At `step`; `label` is a word or two."""

    kind: Kind
    step: int
    label: str


_STOPS: Final = ("Suspended", "Terminated")
_SYMBOL_TOP: Final = TOP + 3
_SYMBOL_BOTTOM: Final = HEIGHT - BOTTOM - 4
_MARK_STYLES: Final[Mapping[Kind, Option]] = {
    "restart": {"lineStyle": {"color": palette.RESTART, "type": "dashed", "width": 1.5}},
    "suspend": {"lineStyle": {"color": palette.SUSPEND, "type": "dotted", "width": 1.5}},
    "alert": {"lineStyle": {"color": palette.ALERT, "type": "solid", "width": 1.5}},
    "checkpoint": {"lineStyle": {"color": palette.CHECKPOINT, "type": "solid", "width": 1, "opacity": 0.25}},
}
# A symbol at the top or the bottom of the line: color is not the only difference.
_MARK_SYMBOLS: Final[Mapping[Kind, Option]] = {
    "restart": {"symbol": "triangle", "symbolRotate": 180, "y": _SYMBOL_TOP, "itemStyle": {"color": palette.RESTART}},
    "suspend": {"symbol": "rect", "y": _SYMBOL_TOP, "itemStyle": {"color": palette.SUSPEND}},
    "alert": {"symbol": "diamond", "symbolSize": 9, "y": _SYMBOL_TOP, "itemStyle": {"color": palette.ALERT}},
    "checkpoint": {"symbol": "triangle", "y": _SYMBOL_BOTTOM, "itemStyle": {"color": palette.CHECKPOINT}},
}


def of_attempts(attempts: Sequence[AttemptRow]) -> list[Mark]:
    """A restart at the step that an attempt resumed from, a suspend at the last step of the attempt before."""
    marks = [
        Mark("restart", attempt.step_from, f"attempt {attempt.attempt}")
        for attempt in attempts
        if attempt.attempt > 1 and attempt.step_from is not None
    ]
    marks += [
        Mark("suspend", attempt.step_to, "stopped")
        for attempt in attempts
        if attempt.step_to is not None and (attempt.reason or "").startswith(_STOPS)
    ]
    return marks


def of_checkpoints(checkpoints: Iterable[CheckpointRow]) -> list[Mark]:
    """Those that can be resumed from."""
    return [Mark("checkpoint", row.step, "") for row in checkpoints if row.state == "committed"]


def layer(
    lines: Sequence[PlotLine], marks: Sequence[Mark], place: Placing, steps: tuple[float, float] | None
) -> list[Option]:
    """A series without points that carries the marks and the ranges with values that were not finite; empty without
    any."""
    shown = [mark for mark in marks if steps is None or steps[0] <= mark.step <= steps[1]]
    broken = flagged_ranges(line.curve for line in lines)
    carried = (_at_steps(shown, place) if shown else {}) | (_over_ranges(broken, place) if broken else {})
    plain = {"type": "line", "name": "marks", "data": [], "silent": True, "tooltip": {"show": False}}
    return [plain | carried] if carried else []


def _at_steps(marks: Sequence[Mark], place: Placing) -> Option:
    common = {"silent": True, "animation": False, "label": {"show": False}}
    return {
        "markLine": common
        | {
            "symbol": ["none", "none"],
            "data": [{"xAxis": place(mark.step), **_MARK_STYLES[mark.kind]} for mark in marks],
        },
        "markPoint": common
        | {"symbolSize": 7, "data": [{"coord": [place(mark.step), 0], **_MARK_SYMBOLS[mark.kind]} for mark in marks]},
    }


def _over_ranges(ranges: Sequence[tuple[float, float]], place: Placing) -> Option:
    return {
        "markArea": {
            "silent": True,
            "itemStyle": {"color": palette.NOT_FINITE},
            "label": {"show": True, "position": "insideTop", "color": palette.ALERT, "fontSize": 10},
            "data": [
                [{"name": "not finite", "xAxis": place(start - 0.5)}, {"xAxis": place(end + 0.5)}]
                for start, end in ranges
            ],
        }
    }
