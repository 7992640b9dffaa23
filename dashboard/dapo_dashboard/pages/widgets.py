"""Elements that several pages share: a table whose selection follows its rows, links to other pages, hints where there
is nothing yet."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from dapo_core.run.formatting import cell, printable

Selection = Mapping[str, Sequence[Any]]
"""Streamlit's: `rows` are positions, `cells` pairs of a position and a column."""
# More than one line: Streamlit takes a single line for the path of a script.
_GO_SCRIPT: Final = """
export default ({ data }) => {
  const to = data?.to && new URL(data.to, document.baseURI).href;
  if (!to || to === window.location.href) return;
  window.history.pushState({}, "", to);
  window.dispatchEvent(new PopStateEvent("popstate"));
}
"""


def frame(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """A table for st.dataframe, which viewers copy, or download as CSV: texts in it are no formulas of a spreadsheet,
    and control nothing."""
    return pd.DataFrame({cell(name): [_shown(value) for value in column] for name, column in columns.items()})


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return cell(printable(value))
    return [*map(_shown, value)] if isinstance(value, list) and value and isinstance(value[0], str) else value


def steady_table(columns: Mapping[str, Sequence[Any]], ids: Sequence[str], *, key: str, **options: Any) -> Selection:
    """Draw a table whose rows are identified by `ids`, and return its selection.

    The selection stays with its rows while rows are added, removed and reordered: the browser reports positions in the
    table it was sent last, which are mapped to the rows' current positions."""
    sent = f"{key}-ids"
    before = st.session_state.get(sent, ids)
    if key in st.session_state and before != ids:
        st.session_state[key] = {"selection": moved(st.session_state[key]["selection"], before, ids)}
    st.session_state[sent] = ids
    chosen = st.dataframe(frame(columns), hide_index=True, placeholder="", key=key, on_select="rerun", **options)
    selection: Selection = chosen.selection
    return selection


def verdict_text(is_right: bool, truncated: bool = False) -> str:
    """The verdict of a response, as tables show it."""
    return ("✓ right" if is_right else "✗ wrong") + (", truncated" if truncated else "")


def clicked_row(selection: Selection, count: int) -> int | None:
    """The row of the cell that is selected, of a table of `count` rows."""
    row = int(selection["cells"][0][0]) if selection["cells"] else count
    return row if row < count else None


def moved(selection: Selection, before: Sequence[str], after: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The selection at its rows' new positions, without rows that were removed. Pure."""
    position_now = {name: position for position, name in enumerate(after)}
    new = {position: position_now[name] for position, name in enumerate(before) if name in position_now}
    return {
        "rows": [new[row] for row in selection["rows"] if row in new],
        "columns": list(selection["columns"]),
        "cells": [(new[row], column) for row, column in selection["cells"] if row in new],
    }


def go(page: str, **query: str | Sequence[str]) -> None:
    """Open another page, as the browser's own Back and Forward do: without loading the application again.

    Not st.switch_page: in a fragment that reruns by itself, a timer's rerun that is already under way meets the new
    page, and Streamlit 1.67 then shows an empty page or none."""
    _go_component()(data={"to": f"{page}?{urlencode(query, doseq=True)}"}, key="go")


@st.cache_resource
def _go_component() -> Any:
    return st.components.v2.component("dapo_go", js=_GO_SCRIPT)


def no_runs() -> None:
    """The hint for a metadata store without runs."""
    st.info("There are no runs yet. Start one:", icon=":material/rocket_launch:")
    st.code("dapo run examples/arithmetic.yaml", language="bash")
