"""What the live view shows of the metrics: four charts, two bars and a line of figures. Pure."""

from rich.text import Text

from dapo_trainer.local import watched
from dapo_trainer.local.charts import Chart, chart_lines, stacked_line
from dapo_trainer.local.sparkline import Glyphs
from dapo_trainer.local.view_model import View
from dapo_trainer.local.words import number, percent, span

_GROUP_COLOURS = ("red", "green", "blue")
_TIME_COLOURS = ("cyan", "yellow", "magenta", "blue", "green", "red")


def charts(view: View, width: int, rows: int, glyphs: Glyphs) -> list[Text]:
    """Reward, accuracy, length and entropy, `rows` lines each."""
    lines: list[Text] = []
    for chart in (_reward(view), _accuracy(view), _length(view), _entropy(view)):
        lines += [Text()] if lines and rows > 3 else []
        lines += chart_lines(chart, width, rows, glyphs)
    return lines


def bars(view: View, width: int, glyphs: Glyphs) -> list[Text]:
    """Shares of the groups, and of a step's time."""
    return [_groups(view, width, glyphs), _times(view, width, glyphs)]


def figures(view: View) -> list[str]:
    """The other numbers of the last step, the most telling first; those it has."""
    last = view.last
    batches, pace = last(watched.GENERATION_BATCHES), last(watched.STEP_SECONDS)
    tokens, clipped = last(watched.THROUGHPUT), last(watched.CLIP_HIGH)
    gradient, rate = last(watched.GRAD_NORM), last(watched.LEARNING_RATE)
    found = [
        "" if batches is None else f"{number(batches)} generation {'batch' if batches == 1 else 'batches'}",
        "" if tokens is None else f"{number(tokens)} tokens/s",
        "" if pace is None else f"{span(pace)} a step",
        "" if clipped is None else f"clipped high {percent(clipped)} low {percent(last(watched.CLIP_LOW))}",
        "" if gradient is None else f"gradient {number(gradient, 2)}",
        "" if rate is None else f"lr {number(rate, 2)}",
    ]
    return [figure for figure in found if figure]


def _change(view: View, metric: str, as_percent: bool = False) -> str:
    change = view.change(metric)
    if change is None:
        return ""
    amount = f"{abs(change) * 100:.1f}" if as_percent else number(abs(change), 2)
    return f"{'▲' if change >= 0 else '▼'} {amount}"


def _reward(view: View) -> Chart:
    metric = watched.first_of(view, watched.REWARD)
    trained = view.last(watched.REWARD[1])
    second = f"trained on {number(trained, 2)}" if trained is not None and metric != watched.REWARD[1] else ""
    return Chart("reward", "green", view.curve(metric), number(view.last(metric)), _change(view, metric), second)


def _accuracy(view: View) -> Chart:
    metric = watched.first_of(view, watched.ACCURACY)
    checks = watched.validations(view)[:1]
    curve = view.curve(checks[0].metric) if checks else []
    second = ""
    if curve:
        before = f" from {percent(curve[0][1])}" if len(curve) > 1 else ""
        second = f"◆ {checks[0].title} {percent(curve[-1][1])}{before}"
    value, change = percent(view.last(metric)), _change(view, metric, as_percent=True)
    return Chart("accuracy", "cyan", view.curve(metric), value, change, second, marks=tuple(curve), share=True)


def _length(view: View) -> Chart:
    metric = watched.first_of(view, watched.LENGTH)
    parts = [f"max {number(view.last(watched.LENGTH_MAX))}" if view.last(watched.LENGTH_MAX) is not None else ""]
    if (cut := view.last(watched.LENGTH_CLIPPED)) is not None:
        parts.append(f"cut {percent(cut)}")
    second = " · ".join(part for part in parts if part)
    return Chart("length", "yellow", view.curve(metric), number(view.last(metric)), _change(view, metric), second)


def _entropy(view: View) -> Chart:
    metric = watched.first_of(view, watched.ENTROPY)
    probability = view.last(watched.MEAN_PROBABILITY)
    second = f"mean probability {number(probability, 2)}" if probability is not None else ""
    return Chart("entropy", "magenta", view.curve(metric), number(view.last(metric)), _change(view, metric), second)


def _groups(view: View, width: int, glyphs: Glyphs) -> Text:
    shares = [view.last(metric) or 0.0 for metric in watched.GROUPS]
    names = ("all wrong", "mixed", "all right")
    labels = [f"{name} {percent(share)}" for name, share in zip(names, shares, strict=True)]
    return stacked_line("groups", shares, labels, _GROUP_COLOURS, width, glyphs)


def _times(view: View, width: int, glyphs: Glyphs) -> Text:
    times = [(name, watched.phase_seconds(view, name) or 0.0) for name in watched.TIMINGS]
    shown = [(name, seconds) for name, seconds in times if seconds > 0]
    labels = [f"{name} {span(seconds)}" for name, seconds in shown]
    return stacked_line("time", [seconds for _, seconds in shown], labels, _TIME_COLOURS, width, glyphs)
