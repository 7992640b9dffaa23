"""One run: is it well, and if not, why."""

import streamlit as st

from dapo_core.db import ENDED_STATES, RunRow
from dapo_dashboard import session
from dapo_dashboard.pages import (
    checkpoints,
    configuration,
    curve_grid,
    evaluations,
    picker,
    samples,
    status_strip,
    timeline,
)
from dapo_dashboard.reads.source import NothingYetError

VIEWS = {
    "Curves": curve_grid.show,
    "Samples": samples.show,
    "Checkpoints": checkpoints.show,
    "Evaluations": evaluations.show,
    "Timeline": timeline.show,
    "Job": configuration.show,
}


def page() -> None:
    """The whole page is one fragment, which looks again by itself while the run goes on."""
    name = st.query_params.get("run")
    try:
        run = session.find_run(name) if name else None
    except NothingYetError as error:
        session.stop_without_data(error)
        st.fragment(session.wait_for_store, run_every=session.settings().refresh_seconds)()
        return
    if run is None:
        picker.show(name)
        return
    lives = run.state not in ENDED_STATES
    st.fragment(_live, run_every=session.settings().refresh_seconds if lives else None)(run.run_id)


def _live(run_id: str) -> None:
    run = session.find_run(run_id)
    if run is None:
        return
    session.tell_trouble(session.read_run(run_id))
    status_strip.show(run)
    view = st.segmented_control(
        "Part of the page",
        list(VIEWS),
        default="Curves",
        required=True,
        key="view",
        bind="query-params",
        label_visibility="collapsed",
    )
    _show(view, run)


def _show(view: str | None, run: RunRow) -> None:
    try:
        VIEWS[view or "Curves"](run)
    except NothingYetError as error:
        session.stop_without_data(error)


page()
