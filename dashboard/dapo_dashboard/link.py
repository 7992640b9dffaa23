"""What pages ask of the browser: one pointer and zoom for all charts (link.js), and to go to another page."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final
from urllib.parse import urlencode

import streamlit as st

# Several lines: Streamlit takes one line for the path of a script.
_LEAVE: Final = """
export default ({ data }) => {
  if (data?.to) window.location.assign(data.to);
}
"""


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


@st.cache_resource
def _leaving() -> Any:
    return st.components.v2.component("dapo_leave", js=_LEAVE)


def go(page: str, **query: str | Sequence[str]) -> None:
    """Leave for another page, as a link does.

    Not by st.switch_page: in a fragment that runs by itself, a call of its timer that is on its way meets the new page,
    and Streamlit 1.67 then shows an empty page or none."""
    _leaving()(data={"to": f"{page}?{urlencode(query, doseq=True)}"}, key="leave")
