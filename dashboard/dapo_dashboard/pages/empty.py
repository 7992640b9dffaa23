"""Pages that have nothing to show yet say what will come, and how to bring it about."""

import streamlit as st

from dapo_core.db import RunRow


def no_curves(run: RunRow) -> None:
    """A run before its first step."""
    st.info(
        f"No step is finished yet: the run is {run.state}. Curves appear here by themselves after the first step.",
        icon=":material/hourglass_top:",
    )


def no_runs() -> None:
    """A store without runs."""
    st.info("There are no runs yet. Start one:", icon=":material/rocket_launch:")
    st.code("dapo run examples/arithmetic.yaml", language="bash")
