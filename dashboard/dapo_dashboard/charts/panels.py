"""The charts of a run's page, one for each panel of the metrics catalogue. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from dapo_core.run import metrics
from dapo_core.run.metrics import METRICS, PHASES, Panel, validation_of
from dapo_dashboard.charts import palette
from dapo_dashboard.charts.buckets import Curve, aligned, scaled, with_error
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine

Curves = Mapping[str, Curve]
_PHASE_METRICS: Final = frozenset(phase.metric for phase in PHASES)


@dataclass(frozen=True)
class Plot:
    """The recipe of a chart: `wants` tells the metrics that it needs by their names, `build` makes the chart."""

    key: str
    wants: Callable[[str], bool]
    build: Callable[[Curves], CurveChart]


def wanted(plots: Sequence[Plot], names: Sequence[str]) -> list[str]:
    """Those of the run's metrics that the plots need."""
    return [name for name in names if any(plot.wants(name) for plot in plots)]


def build(plots: Sequence[Plot], curves: Curves) -> list[CurveChart]:
    """The charts that have something to show."""
    charts = (plot.build(curves) for plot in plots)
    return [chart for chart in charts if any(line.curve for line in chart.lines)]


def with_overwritten(charts: Sequence[CurveChart], curves: Curves) -> list[CurveChart]:
    """The charts with what earlier attempts recorded, by metric. Stacked lines are left as they are: an old part of a
    sum has no place on the new parts."""
    return [replace(chart, lines=[_with_overwritten(line, curves) for line in chart.lines]) for chart in charts]


def _with_overwritten(line: PlotLine, curves: Curves) -> PlotLine:
    old = () if line.stack or not line.curve else curves.get(line.metric, ())
    return replace(line, overwritten=in_axis_unit(line.metric, old)) if old else line


def key_of(prefix: str, metric: str) -> str:
    """The key of a metric's chart: letters, digits and dashes, as in a CSS class; different for each metric."""
    return f"{prefix}-{re.sub(r'[^a-zA-Z0-9]+', '-', metric)}-{crc32(metric.encode()):08x}"


def free_plot(metric: str) -> Plot:
    """A chart of any single metric."""
    key = key_of("free", metric)
    return Plot(
        key,
        lambda name: name == metric,
        lambda curves: CurveChart(
            key,
            metrics.title_of(metric),
            axis_unit(metric),
            [PlotLine(metric, in_axis_unit(metric, curves.get(metric, [])), metric=metric)],
        ),
    )


def axis_unit(metric: str) -> str:
    """The unit on the axis of a metric: percent for shares and probabilities."""
    return "%" if metrics.in_percent(metric) else metrics.unit_of(metric)


def in_axis_unit(metric: str, curve: Curve) -> Curve:
    """The curve in the unit of its axis."""
    return scaled(curve, 100) if metrics.in_percent(metric) else curve


def _of(panel: Panel, styles: Mapping[str, PlotLine], *, from_zero: bool = False) -> Plot:
    """All metrics that the catalogue has in `panel`, in its order, each with its style; the default is a solid line on
    the left axis. Lines on the right axis are marked with an arrow."""
    names = [metric.name for metric in METRICS.values() if metric.panel is panel]
    left = next(name for name in names if not styles.get(name, _PLAIN).right)
    right = next((name for name in names if styles.get(name, _PLAIN).right), None)

    def make(curves: Curves) -> CurveChart:
        lines = [_line(name, curves, styles.get(name, _PLAIN)) for name in names]
        right_unit = "" if right is None else axis_unit(right)
        return CurveChart(
            panel.anchor, panel, axis_unit(left), lines, right_unit, help_anchor=panel.anchor, from_zero=from_zero
        )

    return Plot(panel.anchor, names.__contains__, make)


def _line(name: str, curves: Curves, style: PlotLine) -> PlotLine:
    percent = ", %" if style.right and metrics.in_percent(name) else ""
    title = f"{METRICS[name].title}{percent} →" if style.right else METRICS[name].title
    return replace(style, name=title, curve=in_axis_unit(name, curves.get(name, [])), metric=name)


_PLAIN: Final = PlotLine("")
_DASHED: Final = PlotLine("", dash="dashed")
_RIGHT: Final = PlotLine("", right=True, dash="dashed")
_RIGHT_DOTTED: Final = PlotLine("", right=True, dash="dotted")


def _accuracy(curves: Curves) -> CurveChart:
    lines: list[PlotLine] = []
    present = {name: validation for name in curves if (validation := validation_of(name)) is not None and curves[name]}
    several = len({validation.set_name for validation in present.values()}) > 1
    for name, validation in sorted(present.items(), key=lambda item: (item[1].statistic != "mean", item[0])):
        is_mean = validation.statistic == "mean"
        curve: Curve = in_axis_unit(name, curves[name])
        if is_mean:
            curve = with_error(curve, scaled(curves.get(validation.error, []), 100))
        title = f"{validation.set_name} {validation.title}" if several else validation.title
        lines.append(PlotLine(title, curve, dash="solid" if is_mean else "dotted", metric=name))
    means = sum(validation.statistic == "mean" for validation in present.values())
    lines[means:means] = [
        _line(metrics.ACCURACY_GENERATED, curves, _PLAIN),
        _line(metrics.ACCURACY_TRAINED, curves, _DASHED),
    ]
    return CurveChart("accuracy", Panel.ACCURACY, "%", lines, help_anchor=Panel.ACCURACY.anchor)


def _is_accuracy(name: str) -> bool:
    is_error = name.startswith("val-aux/") and name.endswith("/standard_error")
    return is_error or metrics.panel_of(name) is Panel.ACCURACY


def _reward(curves: Curves) -> CurveChart:
    """The reward that is trained on, then each of several rewards before its weight."""
    several = sorted(name for name in curves if metrics.reward_of(name) is not None)
    lines = [
        _line(metrics.REWARD_GENERATED, curves, _PLAIN),
        _line(metrics.REWARD_TRAINED, curves, _DASHED),
        *(PlotLine(metrics.reward_of(name) or name, curves[name], dash="dotted", metric=name) for name in several),
    ]
    return CurveChart(Panel.REWARD.anchor, Panel.REWARD, "", lines, help_anchor=Panel.REWARD.anchor)


def _is_reward(name: str) -> bool:
    return metrics.panel_of(name) is Panel.REWARD


def _speed(curves: Curves) -> CurveChart:
    present = [phase for phase in PHASES if curves.get(phase.metric)]
    whole = aligned([curves[phase.metric] for phase in present])
    lines = [
        PlotLine(phase.title, curve, stack=True, metric=phase.metric)
        for phase, curve in zip(present, whole, strict=True)
    ]
    speed = _line(metrics.THROUGHPUT, curves, _RIGHT)
    return CurveChart("speed", Panel.SPEED, "seconds", [*lines, speed], "tokens/s", Panel.SPEED.anchor, True)


def _is_speed(name: str) -> bool:
    return name in _PHASE_METRICS or name == metrics.THROUGHPUT


ALL: Final = (
    _of(Panel.LENGTH, {metrics.LENGTH_MAX: _RIGHT}),
    Plot(Panel.REWARD.anchor, _is_reward, _reward),
    _of(Panel.ENTROPY, {metrics.MEAN_PROBABILITY: _RIGHT}),
    Plot(Panel.ACCURACY.anchor, _is_accuracy, _accuracy),
    _of(
        Panel.GROUPS,
        {
            metrics.GROUPS_ALL_WRONG: PlotLine("", color=palette.WRONG, stack=True),
            metrics.GROUPS_MIXED: PlotLine("", color=palette.MIXED, stack=True),
            metrics.GROUPS_ALL_RIGHT: PlotLine("", color=palette.RIGHT, stack=True),
            metrics.GROUPS_LOST: PlotLine("", color=palette.LOST, stack=True),
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
