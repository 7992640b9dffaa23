"""The charts of a page: the toolbar that says how they are looked at, and the component that draws them all."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from dapo_dashboard.charts import palette
from dapo_dashboard.charts.curve_chart import CurveChart
from dapo_dashboard.charts.grid_data import grid_data
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.view import AXES, FROM, TO, ChartView, StepClock, axis_of, window_of
from dapo_dashboard.components import component
from dapo_dashboard.pages import metric_choice
from dapo_dashboard.reads.metric_search import Choice

MAX_STEP: Final = 2**53
COLORS: Final = {
    "restart": palette.RESTART,
    "suspend": palette.SUSPEND,
    "alert": palette.ALERT,
    "checkpoint": palette.CHECKPOINT,
    "validation": palette.MIXED,
    "broken": palette.NOT_FINITE,
}


def toolbar(names: Sequence[str], *, several_runs: bool = False, repeats: bool = False) -> tuple[ChartView, Choice]:
    """Draw the toolbar; return the view, and the metrics to draw besides the usual ones. All of it is in the URL. With
    several runs, the window is of places on the axis, as each run has its own steps there, and search and pins have a
    row of their own. `repeats`: steps may have been repeated, so that there are overwritten points to hide."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="toolbar"):
        axis = axis_of(
            st.segmented_control(
                "X axis",
                AXES,
                default="step",
                required=True,
                key="x",
                bind="query-params",
                label_visibility="collapsed",
                on_change=_zoom if several_runs else None,
                args=(0, 0),
            )
        )
        with st.popover("Smoothing and scale", icon=":material/tune:"):
            smoothing = st.slider(
                "Smoothing (raw values stay faint)", 0.0, 0.99, 0.0, 0.01, key="smooth", bind="query-params", width=240
            )
            log = st.toggle("Log scale", key="log", bind="query-params")
            overwritten = not repeats or st.toggle(
                "Overwritten points",
                value=True,
                key="overwritten",
                bind="query-params",
                help="What an attempt recorded before a newer one repeated its steps, as faint dots.",
            )
        window = _window() if axis == "step" or not several_runs else _window_of_places()
        more = st.multiselect(
            "More curves", names, key="more", bind="query-params", placeholder="More curves: any metric", width=300,
            label_visibility="collapsed",
        )  # fmt: skip
        choice = Choice(more) if several_runs else metric_choice.ask_in_popover(names, more)
    return ChartView(axis, smoothing, log, window, overwritten), choice


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


def _window_of_places() -> tuple[int, int] | None:
    window = window_of(st.query_params.to_dict())
    if window is not None:
        st.button("Show all", icon=":material/zoom_out_map:", on_click=_zoom, args=(0, 0))
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
    charts: Sequence[CurveChart],
    columns: int,
    view: ChartView,
    clock: StepClock | None,
    marks: Sequence[Mark] = (),
    opens: bool = False,
) -> ChartGrid:
    """The charts ready to be drawn, side by side in so many columns. `opens`: a click on a point opens its step.
    `clock`: see `grid_data`."""
    data = grid_data(charts, view, clock, marks) | {"columns": columns, "colors": COLORS, "opens": opens}
    return ChartGrid(charts, json.dumps(data, separators=(",", ":"), allow_nan=False).encode())


def draw(
    grid: ChartGrid,
    key: str,
    csv: Callable[[CurveChart], tuple[str, str] | None] | None = None,
    open_step: Callable[[int], None] = lambda _: None,
) -> None:
    """Draw the charts. A zoom in one zooms all, through the page's URL. `csv` makes the file that a chart's button
    saves: its name and text, or None after an answer why there is none. `open_step` is called with a clicked step."""
    result = component("dapo_charts", "grid.js", "draw")(
        data=grid.sent,
        key=key,
        on_zoom_change=lambda: _zoom_as_asked(st.session_state[key]["zoom"]),
        on_csv_change=lambda: None,
        on_point_change=lambda: _opened(st.session_state[key]["point"], open_step),
    )
    chart = next((chart for chart in grid.charts if chart.key == result.csv), None)
    if chart is not None and csv is not None and (file := csv(chart)) is not None:
        component("dapo_file", "grid.js", "save")(data={"name": file[0], "text": file[1]}, key=f"{key}-file")


def _zoom_as_asked(asked: Mapping[str, Any] | None) -> None:
    """What the browser sends comes from anybody."""
    window = None if asked is None else window_of({name: str(asked.get(name)) for name in (FROM, TO)})
    _zoom(*(window or (0, 0)))


def _opened(asked: object, open_step: Callable[[int], None]) -> None:
    if isinstance(asked, int) and 0 < asked <= MAX_STEP:
        open_step(asked)
