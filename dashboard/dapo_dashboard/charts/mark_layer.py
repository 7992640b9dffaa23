"""What happened to a run, on each of its charts: lines with signs, and bands where values were not finite. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from dapo_dashboard.charts import palette
from dapo_dashboard.charts.curves import flagged_ranges
from dapo_dashboard.charts.marks import Kind, Mark
from dapo_dashboard.charts.plot_area import SIGN_BOTTOM, SIGN_TOP
from dapo_dashboard.charts.series import Line, Option, Placing

_MARK_STYLES: Final[Mapping[Kind, Option]] = {
    "restart": {"lineStyle": {"color": palette.RESTART, "type": "dashed", "width": 1.5}},
    "suspend": {"lineStyle": {"color": palette.SUSPEND, "type": "dotted", "width": 1.5}},
    "alert": {"lineStyle": {"color": palette.ALERT, "type": "solid", "width": 1.5}},
    "checkpoint": {"lineStyle": {"color": palette.CHECKPOINT, "type": "solid", "width": 1, "opacity": 0.25}},
}
# A sign at the top or the bottom of the line, so that the colour is not the only difference.
_MARK_SIGNS: Final[Mapping[Kind, Option]] = {
    "restart": {"symbol": "triangle", "symbolRotate": 180, "y": SIGN_TOP, "itemStyle": {"color": palette.RESTART}},
    "suspend": {"symbol": "rect", "y": SIGN_TOP, "itemStyle": {"color": palette.SUSPEND}},
    "alert": {"symbol": "diamond", "symbolSize": 9, "y": SIGN_TOP, "itemStyle": {"color": palette.ALERT}},
    "checkpoint": {"symbol": "triangle", "y": SIGN_BOTTOM, "itemStyle": {"color": palette.CHECKPOINT}},
}


def layer(
    lines: Sequence[Line], marks: Sequence[Mark], place: Placing, steps: tuple[float, float] | None
) -> list[Option]:
    """A curve without points that carries marks and the ranges of values that were not finite; none without any."""
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
        | {"symbolSize": 7, "data": [{"coord": [place(mark.step), 0], **_MARK_SIGNS[mark.kind]} for mark in marks]},
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
