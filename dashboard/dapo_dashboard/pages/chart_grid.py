"""The charts of a page: the toolbar that says how they are looked at, and the component that draws them all."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from dapo_dashboard import browser_files
from dapo_dashboard.charts import palette
from dapo_dashboard.charts.curve_chart import CurveChart
from dapo_dashboard.charts.grid_data import grid_data
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.view import AXES, FROM, TO, Axis, ChartView, StepClock, axis_of, window_of

COLORS: Final = {
    "restart": palette.RESTART,
    "suspend": palette.SUSPEND,
    "alert": palette.ALERT,
    "checkpoint": palette.CHECKPOINT,
    "validation": palette.MIXED,
    "broken": palette.NOT_FINITE,
}


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
class ChartGrid:
    """The charts of a page as they are sent; the same bytes for all who look at them in the same way."""

    charts: Sequence[CurveChart]
    sent: bytes


def chart_grid(
    charts: Sequence[CurveChart], columns: int, view: ChartView, clock: StepClock, marks: Sequence[Mark] = ()
) -> ChartGrid:
    """The charts ready to be drawn, side by side in so many columns."""
    data = grid_data(charts, view, clock, marks) | {"columns": columns, "colors": COLORS}
    return ChartGrid(charts, json.dumps(data, separators=(",", ":"), allow_nan=False).encode())


def draw(grid: ChartGrid, key: str, csv: Callable[[CurveChart], tuple[str, str] | None] | None = None) -> None:
    """Draw the charts. A zoom in one zooms all, through the page's URL. `csv` makes the file that a chart's button
    saves: its name and text, or None if it has said why there is none."""
    result = _component("dapo_charts", "draw")(
        data=grid.sent,
        key=key,
        on_zoom_change=lambda: _zoom_as_asked(st.session_state[key]["zoom"]),
        on_csv_change=lambda: None,
    )
    chart = next((chart for chart in grid.charts if chart.key == result.csv), None)
    if chart is not None and csv is not None and (file := csv(chart)) is not None:
        _component("dapo_file", "save")(data={"name": file[0], "text": file[1]}, key=f"{key}-file")


def _zoom_as_asked(asked: Mapping[str, Any] | None) -> None:
    """What the browser sends comes from anybody."""
    window = None if asked is None else window_of({name: str(asked.get(name)) for name in (FROM, TO)})
    _zoom(*(window or (0, 0)))


@st.cache_resource(show_spinner=False)
def _component(name: str, function: str) -> Any:
    return st.components.v2.component(name, js=browser_files.loader(function), isolate_styles=False)
