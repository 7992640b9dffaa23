"""The comparison: up to twenty runs side by side."""

from collections.abc import Sequence

import streamlit as st

from dapo_dashboard import context
from dapo_dashboard.pages.compare_views import VIEWS
from dapo_dashboard.reads import comparison, run_list
from dapo_dashboard.reads.cached_reader import NothingReadError


def page() -> None:
    st.title("Compare", anchor=False)
    try:
        names = context.visible_run_ids()
    except NothingReadError as error:
        context.wait_for_store(error)
        return
    chosen = st.multiselect(
        "Runs",
        names,
        key="runs",
        bind="query-params",
        max_selections=comparison.MAX_COMPARED,
        placeholder=f"up to {comparison.MAX_COMPARED} runs",
    )
    if len(chosen) < 2:
        st.info("Choose two or more runs, here or by ticking rows on the Runs page.", icon=":material/compare_arrows:")
        return
    context.live(lambda: _live(chosen), "compare")


def _live(chosen: Sequence[str]) -> None:
    context.show_outage(context.read_run(chosen[0]))
    runs = [run for name in chosen if (run := context.visible_run(name)) is not None]
    said = run_list.read_annotations(context.reader())
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        view = st.segmented_control(
            "Part of the page", list(VIEWS), default="Curves", required=True, key="view",
            bind="query-params", label_visibility="collapsed",
        )  # fmt: skip
        by = st.selectbox("One curve for", comparison.groupings(runs, said), key="by", bind="query-params", width=240)
    VIEWS[view or "Curves"](runs, comparison.groups(runs, by, said))


page()
