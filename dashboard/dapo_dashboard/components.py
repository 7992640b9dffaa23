"""Streamlit's components whose scripts are in `browser/`."""

from typing import Any

import streamlit as st

from dapo_dashboard import browser_files


@st.cache_resource(show_spinner=False)
def component(name: str, module: str, function: str) -> Any:
    """The component that calls `function` of a module in `browser/`."""
    return st.components.v2.component(name, js=browser_files.loader(module, function), isolate_styles=False)
