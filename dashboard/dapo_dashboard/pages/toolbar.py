"""How the charts of a page are looked at: axis, smoothing, scale, range, more curves. All of it is in the URL."""

from collections.abc import Sequence

import streamlit as st

from dapo_dashboard.charts.view import FROM, TO, View, axis_of, window_of
from dapo_dashboard.clock import AXES, Axis


def show(names: Sequence[str], axes: Sequence[Axis] = AXES) -> tuple[View, list[str]]:
    """The view, and the metrics to draw besides the usual ones."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="toolbar"):
        axis = "step"
        if len(axes) > 1:
            axis = st.segmented_control("Over", axes, default="step", required=True, key="x", bind="query-params")
        smoothing = st.slider(
            "Smoothing, raw stays faint", 0.0, 0.99, 0.0, 0.01, key="smooth", bind="query-params", width=180
        )
        log = st.toggle("Log scale", key="log", bind="query-params")
        window = _window()
        more = st.multiselect(
            "More curves", names, key="more", bind="query-params", placeholder="any metric of the run", width=300
        )
    return View(axis_of(axis), smoothing, log, window), list(more)


def zoom(first: int, last: int) -> None:
    """Show these steps, or all of them where they are none."""
    if last > first:
        st.query_params.update({FROM: str(first), TO: str(last)})
    else:
        for name in (FROM, TO):
            st.query_params.pop(name, None)


def _window() -> tuple[int, int] | None:
    window = window_of(st.query_params.to_dict())
    label = "Steps: all" if window is None else f"Steps {window[0]} to {window[1]}"
    with st.popover(label, icon=":material/zoom_in:", help="Or drag over a chart; double-click shows all."):
        start, end = window or (0, 0)
        keys = (f"from-{start}", f"to-{end}")
        # A form sends what was typed together with the press of its button: nothing typed is late.
        with st.form("range", border=False):
            st.number_input("From step", 0, value=start, key=keys[0])
            st.number_input("To step", 0, value=end, key=keys[1])
            st.form_submit_button("Show these steps", on_click=_zoom_to_typed, args=keys)
        st.button("Show all steps", on_click=zoom, args=(0, 0))
    if window is not None:
        st.button("All steps", icon=":material/zoom_out_map:", on_click=zoom, args=(0, 0))
    return window


def _zoom_to_typed(first: str, last: str) -> None:
    zoom(st.session_state[first], st.session_state[last])
