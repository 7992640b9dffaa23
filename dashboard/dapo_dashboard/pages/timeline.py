"""Attempts and events in time."""

import time

import pandas as pd
import streamlit as st

from dapo_core.db import AttemptRow, EventRow, RunRow
from dapo_core.run.formatting import duration, moment
from dapo_dashboard import session
from dapo_dashboard.charts import timeline_chart
from dapo_dashboard.plain import shown

MOST_EVENTS = 500


def show(run: RunRow) -> None:
    """A picture of when what ran, and the same as tables."""
    source = session.source()
    attempts = source.read(("attempts", run.run_id), lambda reader, _: reader.attempts(run.run_id)).value
    events = source.read(("events", run.run_id), lambda reader, _: reader.events(run.run_id, MOST_EVENTS)).value
    if not attempts and not events:
        st.info("Nothing has happened yet.", icon=":material/hourglass_top:")
        return
    now = time.time()
    option = timeline_chart.option(attempts, events, now)
    st.echarts_chart(
        option,
        height=timeline_chart.height(attempts),
        key="timeline",
        alt=f"{len(attempts)} attempts and {len(events)} events in time",
    )
    st.markdown("**Attempts**")
    st.dataframe(_attempts(attempts, now), hide_index=True, placeholder="", alt="Table of attempts")
    st.markdown("**Events**")
    st.dataframe(
        _events(events),
        hide_index=True,
        placeholder="",
        column_config={"Message": st.column_config.TextColumn(width=700)},
        alt="Table of events, newest first",
    )


def _attempts(rows: list[AttemptRow], now: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Attempt": [row.attempt for row in rows],
            "Started": [moment(row.started_at) for row in rows],
            "Took": [duration((row.ended_at or now) - row.started_at) for row in rows],
            "From step": [row.step_from for row in rows],
            "To step": [row.step_to for row in rows],
            "Ended by": [row.reason or "still running" for row in rows],
            "Exit code": [row.exit_code for row in rows],
            "Counted": [{None: "", True: "yes", False: "no"}[row.counted] for row in rows],
            "Message": [shown(row.message or "", 400) for row in rows],
        }
    )


def _events(rows: list[EventRow]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "When": [moment(row.ts) for row in rows],
            "Step": [row.step for row in rows],
            "Kind": ["⚠ Warning" if row.type == "Warning" else "Normal" for row in rows],
            "Reason": [shown(row.reason, 80) for row in rows],
            "Message": [shown(row.message, 600) for row in rows],
        }
    )
