"""Up to twenty runs side by side."""

from collections.abc import Sequence

import streamlit as st

from dapo_core.db import RunRow
from dapo_dashboard import session
from dapo_dashboard.pages import compare_curves, compare_tables
from dapo_dashboard.reads import comparison
from dapo_dashboard.reads.source import NothingYetError

VIEWS = ("Curves", "Results", "Ablation", "Differences")


def page() -> None:
    st.title("Compare", anchor=False)
    try:
        names = _names()
    except NothingYetError as error:
        session.stop_without_data(error)
        st.fragment(session.wait_for_store, run_every=session.settings().refresh_seconds)()
        return
    chosen = st.multiselect(
        "Runs",
        names,
        key="runs",
        bind="query-params",
        max_selections=comparison.MOST_RUNS,
        placeholder=f"up to {comparison.MOST_RUNS} runs",
    )
    if len(chosen) < 2:
        st.info(
            "Choose two runs or more, here or by ticking rows of the table of runs.", icon=":material/compare_arrows:"
        )
        return
    st.fragment(_live, run_every=session.settings().refresh_seconds)(chosen)


def _names() -> list[str]:
    viewer = session.viewer()
    rows = session.source().read(("pick",), lambda reader, _: reader.run_table([], limit=5_000)).value
    return [row.run_id for row in rows if viewer.may_see(row.namespace)]


def _live(chosen: Sequence[str]) -> None:
    session.tell_trouble(session.read_run(chosen[0]))
    runs = [run for name in chosen if (run := session.find_run(name)) is not None]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        view = st.segmented_control(
            "Part of the page", VIEWS, default=VIEWS[0], required=True, key="view",
            bind="query-params", label_visibility="collapsed",
        )  # fmt: skip
        by = st.selectbox("A curve for", comparison.groupings(runs), key="by", bind="query-params", width=240)
    _show(view or VIEWS[0], runs, by)


def _show(view: str, runs: Sequence[RunRow], by: str) -> None:
    groups = comparison.groups(runs, by)
    if view == "Curves":
        compare_curves.show(runs, groups)
    elif view == "Results":
        compare_tables.results(runs)
    elif view == "Ablation":
        compare_tables.ablation(runs, groups)
    else:
        compare_tables.differences(runs)


page()
