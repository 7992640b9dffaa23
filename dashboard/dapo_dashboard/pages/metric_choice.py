"""Which metrics a page draws, as its viewer asks for them: a pattern, and pinned metrics that come first. Both are in
the link."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import streamlit as st

from dapo_dashboard.escaping import markdown
from dapo_dashboard.reads import metric_search
from dapo_dashboard.reads.metric_search import MAX_CHARTS, MAX_PATTERN, Choice, PatternError

_PATTERN: Final = "match"


def ask(names: Sequence[str], more: Sequence[str]) -> Choice:
    """Draw the fields, and return what is in them and the metrics that are asked for one by one (`more`)."""
    pattern = st.text_input(
        "Search metrics", key=_PATTERN, bind="query-params", max_chars=MAX_PATTERN, width=300,
        placeholder="Search metrics: entropy|^actor/", label_visibility="collapsed",
        help="A regular expression: the charts are those of the metrics in whose names it is found.",
    )  # fmt: skip
    pinned = st.multiselect(
        "Pinned", names, key="pin", bind="query-params", placeholder="Pinned: metrics that come first", width=300,
        label_visibility="collapsed",
    )  # fmt: skip
    return Choice(more, pinned, (pattern or "").strip())


def ask_in_popover(names: Sequence[str], more: Sequence[str]) -> Choice:
    """The same, behind a button that says what is searched for."""
    pattern = st.query_params.get(_PATTERN, "").strip()
    label = f"Search: {markdown(pattern, 24)}" if pattern else "Search and pin"
    with st.popover(label, icon=":material/search:"):
        return ask(names, more)


def usable(names: Sequence[str], choice: Choice) -> Choice:
    """The choice, without a pattern that is none: the page says what is wrong with it."""
    try:
        metric_search.matching(names, choice.pattern)
    except PatternError as error:
        st.warning(markdown(error, 600), icon=":material/search_off:")
        return replace(choice, pattern="")
    return choice


def chosen(names: Sequence[str], usual: Sequence[str], choice: Choice) -> Sequence[str]:
    """The metrics to draw of `names`: see `metric_search.chosen`. If these are none or not all, the page says so."""
    found = metric_search.chosen(names, usual, choice)
    if choice.pattern and names and not found.names:
        st.info("No metric matches: change the pattern.", icon=":material/search_off:")
    if found.left_out:
        st.caption(f"{MAX_CHARTS} charts are shown; {found.left_out} more match. Search for fewer.")
    return found.names
