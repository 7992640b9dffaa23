"""The pointer and the zoom that all charts of a page share; what it does in the browser is in link.js."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import streamlit as st


@st.cache_resource
def _component() -> Any:
    script = resources.files("dapo_dashboard").joinpath("link.js").read_text(encoding="utf-8")
    return st.components.v2.component("dapo_chart_link", js=script)


def link_charts(sides: Mapping[str, tuple[int, int]], domain: tuple[float, float] | None) -> Mapping[str, Any] | None:
    """Link the charts of these keys, each with the pixels left and right of its plot; `domain` is what their x axis
    spans. Returns what the reader has just asked for: {"from": x, "to": x} or {"reset": true}, once."""
    data = {"charts": {key: list(pair) for key, pair in sides.items()}, "domain": domain}
    result = _component()(data=data, key="chart-link", on_zoom_change=lambda: None)
    asked: Mapping[str, Any] | None = result.zoom
    return asked
