"""The charts of a page: the toolbar that says how they are looked at, their frames, and the pointer and zoom that they
share."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pyarrow as pa
import streamlit as st

from dapo_dashboard.charts import options
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.options import CurveChart
from dapo_dashboard.charts.series import HEIGHT, Option
from dapo_dashboard.charts.view import AXES, FROM, TO, Axis, ChartView, StepClock, axis_of, window_of
from dapo_dashboard.escaping import chart_title_html


def toolbar(names: Sequence[str], axes: Sequence[Axis] = AXES) -> tuple[ChartView, list[str]]:
    """Draw the toolbar; return the view, and the metrics to draw besides the usual ones. All of it is in the URL."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="toolbar"):
        axis = "step"
        if len(axes) > 1:
            axis = st.segmented_control("X axis", axes, default="step", required=True, key="x", bind="query-params")
        smoothing = st.slider(
            "Smoothing (raw values stay faint)", 0.0, 0.99, 0.0, 0.01, key="smooth", bind="query-params", width=190
        )
        log = st.toggle("Log scale", key="log", bind="query-params")
        window = _window()
        more = st.multiselect(
            "More curves", names, key="more", bind="query-params", placeholder="any metric of the run", width=300
        )
    return ChartView(axis_of(axis), smoothing, log, window), list(more)


def _window() -> tuple[int, int] | None:
    window = window_of(st.query_params.to_dict())
    label = "Steps: all" if window is None else f"Steps {window[0]} to {window[1]}"
    with st.popover(label, icon=":material/zoom_in:", help="Or drag across a chart; double-click to reset."):
        start, end = window or (0, 0)
        keys = (f"from-{start}", f"to-{end}")
        # A form sends what was typed with the click on its button, so nothing typed arrives late.
        with st.form("range", border=False):
            st.number_input("From step", 0, value=start, key=keys[0])
            st.number_input("To step", 0, value=end, key=keys[1])
            st.form_submit_button("Show these steps", on_click=_zoom_to_typed, args=keys)
        st.button("Show all steps", on_click=_zoom, args=(0, 0))
    if window is not None:
        st.button("All steps", icon=":material/zoom_out_map:", on_click=_zoom, args=(0, 0))
    return window


def _zoom(first: int, last: int) -> None:
    """Show these steps, or all steps if the range is empty."""
    if last > first:
        st.query_params.update({FROM: str(first), TO: str(last)})
    else:
        for name in (FROM, TO):
            st.query_params.pop(name, None)


def _zoom_to_typed(first: str, last: str) -> None:
    _zoom(st.session_state[first], st.session_state[last])


@dataclass(frozen=True)
class Card:
    """A chart as it is sent; the same for all viewers."""

    chart: CurveChart
    option: Option
    spoken: str


def card(
    chart: CurveChart, view: ChartView, clock: StepClock, marks: Sequence[Mark], steps: tuple[float, float] | None
) -> Card:
    """The chart ready to be drawn, with its data as a table (`dataset`), which its toolbar shows and saves as CSV."""
    option = options.option(chart, view, clock=clock, marks=marks, steps=steps)
    option["dataset"] = {"source": pa.table(options.columns(chart, view, clock))}
    return Card(chart, option, options.spoken(chart))


def draw(cards: Sequence[Card], columns: int) -> None:
    """Rows of charts, each with its title, unit and a link to its help; their toolbars save PNG and CSV.

    Each column is also its chart's frame: a container of its own would cost the browser time."""
    for row in range(0, len(cards), columns):
        cells = st.columns(columns, gap="small", border=True)
        for cell, drawn in zip(cells, cards[row : row + columns], strict=False):
            with cell:
                chart = drawn.chart
                st.html(chart_title_html(chart.title, chart.unit, chart.help_anchor or "all"))
                st.echarts_chart(drawn.option, height=HEIGHT, key=f"chart-{chart.key}", alt=drawn.spoken)


def link(charts: Sequence[CurveChart], view: ChartView, clock: StepClock, steps: tuple[float, float] | None) -> None:
    """Link the charts: they share one pointer, and a zoom in one zooms all."""
    if steps is None:
        return
    ends = clock.place(steps[0], view.axis), clock.place(steps[1], view.axis)
    domain = None if ends[0] is None or ends[1] is None else (ends[0], ends[1])
    sides = {re.sub(r"[^A-Za-z0-9_-]", "-", f"chart-{chart.key}"): options.grid_sides(chart) for chart in charts}
    request = _linked(sides, domain, view.axis == "step")
    if not request:
        return
    if request.get("reset"):
        _zoom(0, 0)
    else:
        edges = (clock.step_at(float(request[side]), view.axis) for side in ("from", "to"))
        first, last = (round(edge) if edge is not None else 0 for edge in edges)
        _zoom(max(0, first), max(last, first + 1))
    st.rerun(scope="fragment")


def _linked(
    sides: Mapping[str, tuple[int, int]], domain: tuple[float, float] | None, snap: bool
) -> Mapping[str, Any] | None:
    """Runs link.js over the charts of these keys, each with the pixels left and right of its plot; `domain` is the
    range of their x axis, in whole steps if `snap`.

    Returns the zoom that the viewer has just asked for, once: {"from": x, "to": x} or {"reset": true}."""
    data = {"charts": {key: list(pair) for key, pair in sides.items()}, "domain": domain, "snap": snap}
    result = _link_component()(data=data, key="chart-link", on_zoom_change=lambda: None)
    request: Mapping[str, Any] | None = result.zoom
    return request


@st.cache_resource
def _link_component() -> Any:
    script = resources.files("dapo_dashboard").joinpath("link.js").read_text(encoding="utf-8")
    return st.components.v2.component("dapo_chart_link", js=script)
