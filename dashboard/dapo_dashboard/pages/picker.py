"""A run's page without a run: which one?"""

import streamlit as st

from dapo_dashboard import session
from dapo_dashboard.plain import markdown


def show(name: str | None) -> None:
    """Let the reader choose among those that may be seen, newest first."""
    if name:
        st.warning(f"There is no run {markdown(name, 120)} that you may see.", icon=":material/search_off:")
    viewer = session.viewer()
    rows = session.source().read(("pick",), lambda reader, _: reader.run_table([], limit=500)).value
    names = [row.run_id for row in rows if viewer.may_see(row.namespace)]
    if not names:
        st.info("There are no runs yet. Start one with `dapo run job.yaml`.", icon=":material/rocket_launch:")
        return
    st.selectbox("Run", names, index=None, placeholder="Choose a run", key="picked", on_change=_pick)


def _pick() -> None:
    st.query_params["run"] = st.session_state["picked"]
