"""What the live view shows of the metrics: four charts, two bars and a line of numbers. Pure."""

from rich.text import Text

from dapo_core.run import metrics
from dapo_core.run.formatting import duration, number, percent
from dapo_core.run.metrics import STAGES, Headline, validation_means
from dapo_core.run.sparkline import Glyphs, Point
from dapo_trainer.local.run_view import View
from dapo_trainer.local.text_charts import Chart, chart_lines, stacked_line

_GROUPS = (metrics.GROUPS_ALL_WRONG, metrics.GROUPS_MIXED, metrics.GROUPS_ALL_RIGHT)
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


def _change(view: View, metric: str, as_percent: bool) -> str:
    change = view.change(metric)
    if change is None:
        return ""
    amount = f"{abs(change) * 100:.1f}" if as_percent else number(abs(change), 2)
    return f"{'▲' if change >= 0 else '▼'} {amount}"


def _reward(view: View) -> Chart:
    filtered = view.last(metrics.REWARD_TRAINED)
    beside = filtered is not None and Headline.REWARD.metric(view.curves) != metrics.REWARD_TRAINED
    second = f"{metrics.METRICS[metrics.REWARD_TRAINED].title} {number(filtered, 2)}" if beside else ""
    return _chart(view, Headline.REWARD, "green", second)


def _accuracy(view: View) -> Chart:
    checked, validation = next(iter(validation_means(view.curves).items()), ("", None))
    curve, second = view.curve(checked), ""
    if validation is not None:
        before = f" from {percent(curve[0][1])}" if len(curve) > 1 else ""
        second = f"◆ {validation.title} {percent(curve[-1][1])}{before}"
    return _chart(view, Headline.ACCURACY, "cyan", second, marks=tuple(curve))


def _length(view: View) -> Chart:
    parts = [f"max {number(view.last(metrics.LENGTH_MAX))}" if view.last(metrics.LENGTH_MAX) is not None else ""]
    if (truncated := view.last(metrics.TRUNCATED)) is not None:
        parts.append(f"truncated {percent(truncated)}")
    return _chart(view, Headline.LENGTH, "yellow", " · ".join(part for part in parts if part))


def _entropy(view: View) -> Chart:
    probability = view.last(metrics.MEAN_PROBABILITY)
    second = f"mean probability {percent(probability)}" if probability is not None else ""
    return _chart(view, Headline.ENTROPY, "magenta", second)


def _chart(view: View, headline: Headline, colour: str, second: str, marks: tuple[Point, ...] = ()) -> Chart:
    metric = headline.metric(view.curves)
    share, value = metrics.in_percent(metric), view.last(metric)
    shown, change = percent(value) if share else number(value), _change(view, metric, as_percent=share)
    return Chart(headline.title.lower(), colour, view.curve(metric), shown, change, second, marks, share)


def _groups(view: View, width: int, glyphs: Glyphs) -> Text:
    shares = [view.last(metric) or 0.0 for metric in _GROUPS]
    titles = [metrics.METRICS[metric].title for metric in _GROUPS]
    labels = [f"{title} {percent(share)}" for title, share in zip(titles, shares, strict=True)]
    return stacked_line("groups", shares, labels, _GROUP_COLOURS, width, glyphs)


def _times(view: View, width: int, glyphs: Glyphs) -> Text:
    shown = [(stage, seconds) for stage in STAGES if (seconds := view.stage_seconds(stage)) > 0]
    labels = [f"{name} {duration(seconds)}" for name, seconds in shown]
    return stacked_line("time", [seconds for _, seconds in shown], labels, _TIME_COLOURS, width, glyphs)
