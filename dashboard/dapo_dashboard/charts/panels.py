"""The charts of a run's page, one for each panel of the metrics' catalogue. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dapo_core.run import metrics
from dapo_core.run.metrics import METRICS, PHASES, Panel, validation_of
from dapo_dashboard.charts import palette
from dapo_dashboard.charts.curves import Curve, aligned, scaled, with_error
from dapo_dashboard.charts.options import Chart
from dapo_dashboard.charts.series import Line

Curves = Mapping[str, Curve]
_PHASE_METRICS: Final = frozenset(phase.metric for phase in PHASES)


@dataclass(frozen=True)
class Plot:
    """A chart to be: the metrics that it needs, by a test on names, and how it is made of them."""

    key: str
    wants: Callable[[str], bool]
    build: Callable[[Curves], Chart]


def wanted(plots: Sequence[Plot], names: Sequence[str]) -> list[str]:
    """The metrics that the plots need, of those that the run has."""
    return [name for name in names if any(plot.wants(name) for plot in plots)]


def build(plots: Sequence[Plot], curves: Curves) -> list[Chart]:
    """The charts that have something to show."""
    charts = (plot.build(curves) for plot in plots)
    return [chart for chart in charts if any(line.curve for line in chart.lines)]


def free_plot(metric: str) -> Plot:
    """A chart of any one metric."""
    key = "free-" + re.sub(r"\W+", "-", metric)
    return Plot(
        key,
        lambda name: name == metric,
        lambda curves: Chart(
            key, metrics.title_of(metric), axis_unit(metric), [Line(metric, shown(metric, curves.get(metric, [])))]
        ),
    )


def axis_unit(metric: str) -> str:
    """The unit on the axis of a metric: percent for shares and probabilities."""
    return "%" if metrics.in_percent(metric) else metrics.unit_of(metric)


def shown(metric: str, curve: Curve) -> Curve:
    """The curve in the unit of its axis."""
    return scaled(curve, 100) if metrics.in_percent(metric) else curve


def _of(panel: Panel, styles: Mapping[str, Line], *, from_zero: bool = False) -> Plot:
    """All metrics that the catalogue has in `panel`, in its order; `styles` says how the lines look that are not solid
    ones of the left axis. Lines of the right axis are marked with an arrow."""
    names = [metric.name for metric in METRICS.values() if metric.panel is panel]
    left = next(name for name in names if not styles.get(name, _PLAIN).right)
    right = next((name for name in names if styles.get(name, _PLAIN).right), None)

    def make(curves: Curves) -> Chart:
        lines = [_line(name, curves, styles.get(name, _PLAIN)) for name in names]
        right_unit = "" if right is None else axis_unit(right)
        return Chart(
            panel.anchor, panel, axis_unit(left), lines, right_unit, help_anchor=panel.anchor, from_zero=from_zero
        )

    return Plot(panel.anchor, names.__contains__, make)


def _line(name: str, curves: Curves, style: Line) -> Line:
    percent = ", %" if style.right and metrics.in_percent(name) else ""
    title = f"{METRICS[name].title}{percent} →" if style.right else METRICS[name].title
    return replace(style, name=title, curve=shown(name, curves.get(name, [])))


_PLAIN: Final = Line("", [])
_DASHED: Final = Line("", [], dash="dashed")
_RIGHT: Final = Line("", [], right=True, dash="dashed")
_RIGHT_DOTTED: Final = Line("", [], right=True, dash="dotted")


def _accuracy(curves: Curves) -> Chart:
    lines: list[Line] = []
    found = {name: validation for name in curves if (validation := validation_of(name)) is not None and curves[name]}
    several = len({validation.set_name for validation in found.values()}) > 1
    for name, validation in sorted(found.items(), key=lambda each: (each[1].statistic != "mean", each[0])):
        is_mean = validation.statistic == "mean"
        curve: Curve = shown(name, curves[name])
        if is_mean:
            curve = with_error(curve, scaled(curves.get(validation.error, []), 100))
        title = f"{validation.set_name} {validation.title}" if several else validation.title
        lines.append(Line(title, curve, dash="solid" if is_mean else "dotted"))
    means = sum(validation.statistic == "mean" for validation in found.values())
    lines[means:means] = [
        _line(metrics.ACCURACY_GENERATED, curves, _PLAIN),
        _line(metrics.ACCURACY_TRAINED, curves, _DASHED),
    ]
    return Chart("accuracy", Panel.ACCURACY, "%", lines, help_anchor=Panel.ACCURACY.anchor)


def _is_accuracy(name: str) -> bool:
    is_error = name.startswith("val-aux/") and name.endswith("/standard_error")
    return is_error or metrics.panel_of(name) is Panel.ACCURACY


def _speed(curves: Curves) -> Chart:
    present = [phase for phase in PHASES if curves.get(phase.metric)]
    whole = aligned([curves[phase.metric] for phase in present])
    lines = [Line(phase.title, curve, stack=True) for phase, curve in zip(present, whole, strict=True)]
    speed = _line(metrics.THROUGHPUT, curves, _RIGHT)
    return Chart("speed", Panel.SPEED, "seconds", [*lines, speed], "tokens/s", Panel.SPEED.anchor, True)


def _is_speed(name: str) -> bool:
    return name in _PHASE_METRICS or name == metrics.THROUGHPUT


ALL: Final = (
    _of(Panel.LENGTH, {metrics.LENGTH_MAX: _DASHED}),
    _of(Panel.REWARD, {metrics.REWARD_TRAINED: _DASHED}),
    _of(Panel.ENTROPY, {metrics.MEAN_PROBABILITY: _RIGHT}),
    Plot(Panel.ACCURACY.anchor, _is_accuracy, _accuracy),
    _of(
        Panel.GROUPS,
        {
            metrics.GROUPS_ALL_WRONG: Line("", [], colour=palette.WRONG, stack=True),
            metrics.GROUPS_MIXED: Line("", [], colour=palette.MIXED, stack=True),
            metrics.GROUPS_ALL_RIGHT: Line("", [], colour=palette.RIGHT, stack=True),
            metrics.GROUPS_LOST: Line("", [], colour=palette.LOST, stack=True),
        },
    ),
    _of(
        Panel.SAMPLING,
        {
            metrics.GROUPS_GENERATED: _RIGHT,
            metrics.GROUPS_CARRIED: _RIGHT_DOTTED,
            metrics.GROUPS_DROPPED: _RIGHT_DOTTED,
        },
        from_zero=True,
    ),
    _of(Panel.GRADIENT, {}),
    _of(Panel.CLIP, {metrics.CLIP_FRACTION_LOW: _DASHED}),
    _of(Panel.KL, {}),
    _of(Panel.MISMATCH, {metrics.STALENESS: _RIGHT}),
    Plot(Panel.SPEED.anchor, _is_speed, _speed),
    _of(Panel.HARDWARE, {metrics.MFU: _RIGHT}),
    _of(Panel.TRUNCATED, {metrics.REWARD_FAILURES: _RIGHT}, from_zero=True),
    _of(Panel.LOSS, {metrics.LEARNING_RATE: _RIGHT}),
)
"""A plot for each of `metrics.Panel`, in its order: first the paper's three, then what explains them."""
