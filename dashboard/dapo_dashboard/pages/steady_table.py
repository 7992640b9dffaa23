"""A table whose selection stays with what was selected while rows come, go and change places."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

Selection = Mapping[str, Sequence[Any]]
"""Streamlit's: `rows` are positions, `cells` pairs of a position and a column."""


def draw(columns: Mapping[str, Sequence[Any]], ids: Sequence[str], *, key: str, **options: Any) -> Selection:
    """The table and what is selected in it. `ids` say what each row is about.

    The browser tells positions. What stood there is what it was sent last, not what stands there now."""
    sent = f"{key}-ids"
    before = st.session_state.get(sent, ids)
    if key in st.session_state and before != ids:
        st.session_state[key] = {"selection": moved(st.session_state[key]["selection"], before, ids)}
    st.session_state[sent] = ids
    chosen = st.dataframe(pd.DataFrame(columns), hide_index=True, placeholder="", key=key, on_select="rerun", **options)
    selection: Selection = chosen.selection
    return selection


def moved(selection: Selection, before: Sequence[str], after: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The selection where its rows are now, without those that are gone. Pure."""
    now = {name: position for position, name in enumerate(after)}
    there = {position: now[name] for position, name in enumerate(before) if name in now}
    return {
        "rows": [there[row] for row in selection["rows"] if row in there],
        "columns": list(selection["columns"]),
        "cells": [(there[row], column) for row, column in selection["cells"] if row in there],
    }
