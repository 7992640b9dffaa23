"""The pointer and the zoom that all charts of a page share; what it does in the browser is in link.js."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import streamlit as st


@st.cache_resource
def _component() -> Any:
    script = resources.files("dapo_dashboard").joinpath("link.js").read_text(encoding="utf-8")
    return st.components.v2.component("dapo_chart_link", js=script)


def link_charts(
    sides: Mapping[str, tuple[int, int]], domain: tuple[float, float] | None, snap: bool
) -> Mapping[str, Any] | None:
    """Link the charts of these keys, each with the pixels left and right of its plot; `domain` is what their x axis
    spans, in whole steps if `snap`. Returns what the reader has just asked for, once: {"from": x, "to": x} or
    {"reset": true}."""
    data = {"charts": {key: list(pair) for key, pair in sides.items()}, "domain": domain, "snap": snap}
    result = _component()(data=data, key="chart-link", on_zoom_change=lambda: None)
    asked: Mapping[str, Any] | None = result.zoom
    return asked
