"""One chart of the live view: its curve, axis and numbers side by side. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from dapo_core.run.formatting import fit, number, percent
from dapo_core.run.sparkline import Glyphs, Point, area, resample, scale, stacked

TITLE = 10
AXIS = 7
NUMBERS = 27


@dataclass(frozen=True)
class Chart:
    """A curve with its last value and change; `marks` are single points drawn over it (a validation)."""

    title: str
    colour: str
    points: Sequence[Point]
    value: str
    change: str = ""
    second: str = ""
    marks: tuple[Point, ...] = ()
    share: bool = False


def chart_lines(chart: Chart, width: int, rows: int, glyphs: Glyphs) -> list[Text]:
    """`rows` lines: title, axis, curve, and at the right the numbers."""
    room = max(4, width - TITLE - AXIS - NUMBERS - 3)
    values = [value for _, value in (*chart.points, *chart.marks)]
    if len(values) < 2:
        return [_line(row, rows, chart, "", Text(" " * room)) for row in range(rows)]
    low, high = scale(values)
    curve = _curve(chart, room, rows, low, high, glyphs)
    form = percent if chart.share else number
    axis = ["" for _ in range(rows)]
    axis[-1], axis[0] = form(min(values)), form(max(values))
    return [_line(row, rows, chart, axis[row] if rows > 1 else "", curve[row]) for row in range(rows)]


def _line(row: int, rows: int, chart: Chart, axis: str, curve: Text) -> Text:
    line = Text.assemble(" ", (f"{chart.title if row == 0 else '':<{TITLE}}", "bold"))
    line.append(f"{fit(axis, AXIS - 1):>{AXIS - 1}} ", "dim").append_text(curve).append("  ")
    if row == 0 and not chart.points and not chart.marks:
        line.append("no step yet", "dim")
    elif row == 0:
        line.append(chart.value, f"bold {chart.colour}").append(f"  {chart.change}", "dim")
        if rows == 1 and chart.second:
            line.append(f"  {chart.second}", "dim")
    elif row == 1:
        line.append(fit(chart.second, NUMBERS), "bold" if chart.marks else "dim")
    return line


def _curve(chart: Chart, room: int, rows: int, low: float, high: float, glyphs: Glyphs) -> list[Text]:
    steps = [step for step, _ in (*chart.points, *chart.marks)]
    first, last = min(steps), max(steps)
    # One point is no curve yet.
    points = chart.points if len(chart.points) > 1 else ()
    drawn = area(resample(points, room * glyphs.columns, first, last), low, high, rows, glyphs)
    lines = [Text(row.ljust(room), chart.colour) for row in drawn]
    for step, value in chart.marks:
        column = round((step - first) / max(1, last - first) * (room - 1))
        row = rows - 1 - min(rows - 1, int((value - low) / (high - low) * rows))
        if 0 <= column < room:
            lines[row] = _marked(lines[row], column, "*" if glyphs.ascii else "◆")
    return lines


def _marked(line: Text, column: int, mark: str) -> Text:
    return Text.assemble(line[:column], (mark, "bold default"), line[column + 1 :])


def stacked_line(
    title: str, shares: Sequence[float], labels: Sequence[str], colours: Sequence[str], width: int, glyphs: Glyphs
) -> Text:
    """A bar divided among shares, with a label to each in its colour."""
    line = Text.assemble(" ", (f"{title:<{TITLE}}", "bold"))
    legend = Text("  ")
    for at, label in enumerate(labels):
        legend.append("  " if at else "").append(label, colours[at])
    room = min(40, max(8, width - line.cell_len - legend.cell_len - 1))
    marks = "-=#+%@" if glyphs.ascii else "░▓█▒▚▞"
    for at, cells in enumerate(stacked(shares, room)):
        line.append(marks[at] * cells, colours[at])
    return line.append_text(legend) if any(shares) else line.append("-", "dim")
