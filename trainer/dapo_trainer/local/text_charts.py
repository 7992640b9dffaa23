"""What the live view shows of the metrics, as text: four charts, two bars and a line of numbers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from dapo_core.run import metrics
from dapo_core.run.formatting import Glyphs, Point, area, duration, fit, number, percent, resample, scale, stacked
from dapo_core.run.metrics import STAGES, Headline, validation_means
from dapo_trainer.local.run_view import RunView

TITLE = 10
AXIS = 7
NUMBERS = 27
_GROUPS = (metrics.GROUPS_ALL_WRONG, metrics.GROUPS_MIXED, metrics.GROUPS_ALL_RIGHT)
_GROUP_COLOURS = ("red", "green", "blue")
_TIME_COLOURS = ("cyan", "yellow", "magenta", "blue", "green", "red")


@dataclass(frozen=True)
class TextChart:
    """A curve with its last value and change; `marks` are single points drawn over it (a validation)."""

    title: str
    colour: str
    points: Sequence[Point]
    value: str
    change: str = ""
    second: str = ""
    marks: tuple[Point, ...] = ()
    share: bool = False


def chart_lines(chart: TextChart, width: int, rows: int, glyphs: Glyphs) -> list[Text]:
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


def _line(row: int, rows: int, chart: TextChart, axis: str, curve: Text) -> Text:
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


def _curve(chart: TextChart, room: int, rows: int, low: float, high: float, glyphs: Glyphs) -> list[Text]:
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


def charts(view: RunView, width: int, rows: int, glyphs: Glyphs) -> list[Text]:
    """Reward, accuracy, length and entropy, `rows` lines each."""
    lines: list[Text] = []
    for chart in (_reward(view), _accuracy(view), _length(view), _entropy(view)):
        lines += [Text()] if lines and rows > 3 else []
        lines += chart_lines(chart, width, rows, glyphs)
    return lines


def bars(view: RunView, width: int, glyphs: Glyphs) -> list[Text]:
    """Shares of the groups, and of a step's time."""
    return [_groups(view, width, glyphs), _times(view, width, glyphs)]


def figures(view: RunView) -> list[str]:
    """The other numbers of the last step, those it has, in the order of interest."""
    last = view.last
    batches, pace = last(metrics.GENERATION_BATCHES), last(metrics.STEP_SECONDS)
    tokens, clipped = last(metrics.THROUGHPUT), last(metrics.CLIP_FRACTION_HIGH)
    gradient, rate = last(metrics.GRADIENT_NORM), last(metrics.LEARNING_RATE)
    parts = [
        "" if batches is None else f"{number(batches)} generation {'batch' if batches == 1 else 'batches'}",
        "" if tokens is None else f"{number(tokens)} tokens/s",
        "" if pace is None else f"{duration(pace)} per step",
        "" if clipped is None else f"clipped high {percent(clipped)} low {percent(last(metrics.CLIP_FRACTION_LOW))}",
        "" if gradient is None else f"gradient {number(gradient, 2)}",
        "" if rate is None else f"lr {number(rate, 2)}",
    ]
    return [part for part in parts if part]


def _change(view: RunView, metric: str, as_percent: bool) -> str:
    change = view.change(metric)
    if change is None:
        return ""
    amount = f"{abs(change) * 100:.1f}" if as_percent else number(abs(change), 2)
    return f"{'▲' if change >= 0 else '▼'} {amount}"


def _reward(view: RunView) -> TextChart:
    filtered = view.last(metrics.REWARD_TRAINED)
    beside = filtered is not None and Headline.REWARD.metric(view.curves) != metrics.REWARD_TRAINED
    second = f"{metrics.METRICS[metrics.REWARD_TRAINED].title} {number(filtered, 2)}" if beside else ""
    return _chart(view, Headline.REWARD, "green", second)


def _accuracy(view: RunView) -> TextChart:
    checked, validation = next(iter(validation_means(view.curves).items()), ("", None))
    curve, second = view.curve(checked), ""
    if validation is not None:
        before = f" from {percent(curve[0][1])}" if len(curve) > 1 else ""
        second = f"◆ {validation.title} {percent(curve[-1][1])}{before}"
    return _chart(view, Headline.ACCURACY, "cyan", second, marks=tuple(curve))


def _length(view: RunView) -> TextChart:
    parts = [f"max {number(view.last(metrics.LENGTH_MAX))}" if view.last(metrics.LENGTH_MAX) is not None else ""]
    if (truncated := view.last(metrics.TRUNCATED)) is not None:
        parts.append(f"truncated {percent(truncated)}")
    return _chart(view, Headline.LENGTH, "yellow", " · ".join(part for part in parts if part))


def _entropy(view: RunView) -> TextChart:
    probability = view.last(metrics.MEAN_PROBABILITY)
    second = f"mean probability {percent(probability)}" if probability is not None else ""
    return _chart(view, Headline.ENTROPY, "magenta", second)


def _chart(view: RunView, headline: Headline, colour: str, second: str, marks: tuple[Point, ...] = ()) -> TextChart:
    metric = headline.metric(view.curves)
    share, value = metrics.in_percent(metric), view.last(metric)
    shown, change = percent(value) if share else number(value), _change(view, metric, as_percent=share)
    return TextChart(headline.title.lower(), colour, view.curve(metric), shown, change, second, marks, share)


def _groups(view: RunView, width: int, glyphs: Glyphs) -> Text:
    shares = [view.last(metric) or 0.0 for metric in _GROUPS]
    titles = [metrics.METRICS[metric].title for metric in _GROUPS]
    labels = [f"{title} {percent(share)}" for title, share in zip(titles, shares, strict=True)]
    return stacked_line("groups", shares, labels, _GROUP_COLOURS, width, glyphs)


def _times(view: RunView, width: int, glyphs: Glyphs) -> Text:
    shown = [(stage, seconds) for stage in STAGES if (seconds := view.stage_seconds(stage)) > 0]
    labels = [f"{name} {duration(seconds)}" for name, seconds in shown]
    return stacked_line("time", [seconds for _, seconds in shown], labels, _TIME_COLOURS, width, glyphs)
