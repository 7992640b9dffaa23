"""What else is known of a run: its checkpoints and how to resume from them, its attempts and events in time, and its
job."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st
import yaml

from dapo_core.db import AttemptRow, CheckpointRow, EventRow, RunRow
from dapo_core.run.checkpoint import newest_committed
from dapo_core.run.formatting import duration, moment
from dapo_core.run.metrics import validation_means
from dapo_core.run.redaction import without_secrets
from dapo_dashboard import context
from dapo_dashboard.charts import intervals
from dapo_dashboard.escaping import shown
from dapo_dashboard.pages import run_fleet
from dapo_dashboard.pages.widgets import frame, steady_table
from dapo_dashboard.reads.comparison import MAX_JOB, is_long
from dapo_dashboard.reads.page_reads import note_time

MAX_EVENTS: Final = 500
MAX_YAML_CHARACTERS: Final = 200_000
CHECKPOINT_STATES: Final = {
    "uploading": "… uploading",
    "committed": "✓ committed: the manifest has the checksum of every file",
    "failed": "✗ failed",
    "deleting": "being removed",
    "deleted": "removed",
}
CHECKPOINT_COLUMNS: Final = {
    "Size": st.column_config.NumberColumn(format="bytes"),
    "Validation": st.column_config.NumberColumn(format="%.2f%%", help="mean@k of the first validation set"),
    "State": st.column_config.TextColumn(width=300),
    "URI": st.column_config.TextColumn(width=420),
}


def checkpoints(run: RunRow) -> None:
    """The table of checkpoints, and the commands that resume from the selected one."""
    rows = context.reader().read(("checkpoints", run.run_id), lambda db, _: db.checkpoints(run.run_id)).value
    if not rows:
        st.info(
            "There is no checkpoint yet; `schedule.checkpointEvery` sets how often one is saved.",
            icon=":material/save:",
        )
        return
    with_removed = st.toggle("Show removed checkpoints", key="removed", bind="query-params")
    visible = [row for row in rows if with_removed or row.state not in ("deleted", "deleting")]
    if not visible:
        st.info("All checkpoints of this run were removed.", icon=":material/delete:")
        return
    selection = steady_table(
        _checkpoint_table(visible),
        [f"{row.step} {row.attempt}" for row in visible],
        key="checkpoints-table",
        column_config=CHECKPOINT_COLUMNS,
        selection_mode="single-row-required",
        alt=f"Table of {len(visible)} checkpoints",
    )
    _resume_commands(visible[next(iter(selection["rows"]), 0)], newest_committed(rows))


def _checkpoint_table(rows: Sequence[CheckpointRow]) -> dict[str, list[object]]:
    return {
        "Step": [row.step for row in rows],
        "State": [CHECKPOINT_STATES.get(row.state, row.state) for row in rows],
        "Validation": [_validation(row) for row in rows],
        "Size": [row.size_bytes for row in rows],
        "Files": [row.files for row in rows],
        "Attempt": [row.attempt for row in rows],
        "Time": [moment(row.updated_at) for row in rows],
        "Retention": [shown(row.decision or "", 200) for row in rows],
        "URI": [shown(row.uri, 400) for row in rows],
    }


def _validation(row: CheckpointRow) -> float | None:
    first = next(iter(validation_means(row.metrics)), None)
    return None if first is None else 100 * row.metrics[first]


def _resume_commands(row: CheckpointRow, newest: CheckpointRow | None) -> None:
    if row.state != "committed":
        st.caption(f"Step {row.step} cannot be resumed from: its checkpoint is not committed.")
        return
    if newest is not None and row.step == newest.step:
        st.markdown(f"**Resume this run** from step {row.step}, its newest checkpoint:")
        st.code(f"dapo resume {row.run_id}", language="bash")
    st.markdown(f"**Start another run** from step {row.step}:")
    st.code(f"dapo run job.yaml --set checkpoints.resumeFrom={row.run_id}@{row.step}", language="bash")


def timeline(run: RunRow) -> None:
    """Attempts and events, as a chart and as tables."""
    reader = context.reader()
    attempts = context.attempts(run.run_id)
    events = reader.read(("events", run.run_id), lambda db, _: db.events(run.run_id, MAX_EVENTS)).value
    if not attempts and not events:
        st.info("Nothing has happened yet.", icon=":material/hourglass_top:")
        return
    run_fleet.show(run, attempts, events)
    now = time.time()
    note_time()
    st.echarts_chart(
        intervals.timeline(attempts, events, now),
        height=intervals.timeline_height(attempts),
        key="timeline",
        alt=f"{len(attempts)} attempts and {len(events)} events in time",
    )
    st.markdown("**Attempts**")
    st.dataframe(_attempt_table(attempts, now), hide_index=True, placeholder="", alt="Table of attempts")
    st.markdown("**Events**")
    st.dataframe(
        _event_table(events),
        hide_index=True,
        placeholder="",
        column_config={"Message": st.column_config.TextColumn(width=700)},
        alt="Table of events, newest first",
    )


def _attempt_table(rows: Sequence[AttemptRow], now: float) -> pd.DataFrame:
    return frame(
        {
            "Attempt": [row.attempt for row in rows],
            "Started": [moment(row.started_at) for row in rows],
            "Duration": [duration((row.ended_at or now) - row.started_at) for row in rows],
            "From step": [row.step_from for row in rows],
            "To step": [row.step_to for row in rows],
            "Ended by": [row.reason or "still running" for row in rows],
            "Exit code": [row.exit_code for row in rows],
            "Counted": [{None: "", True: "yes", False: "no"}[row.counted] for row in rows],
            "Message": [shown(row.message or "", 400) for row in rows],
        }
    )


def _event_table(rows: Sequence[EventRow]) -> pd.DataFrame:
    return frame(
        {
            "Time": [moment(row.ts) for row in rows],
            "Step": [row.step for row in rows],
            "Type": ["⚠ Warning" if row.type == "Warning" else "Normal" for row in rows],
            "Reason": [shown(row.reason, 80) for row in rows],
            "Message": [shown(row.message, 600) for row in rows],
        }
    )


def job(run: RunRow) -> None:
    """The job as it was submitted, and the configuration composed from it; values of environment variables and
    whatever looks like a secret are hidden."""
    st.caption("Values of environment variables, passwords and tokens are hidden.")
    submitted, composed = st.columns(2)
    with submitted:
        _yaml("The job", run.spec, f"{run.run_id}.yaml")
    with composed:
        if run.config is None:
            st.markdown("**Effective configuration**")
            st.info("It is composed when the first attempt starts.", icon=":material/hourglass_top:")
        else:
            _yaml("Effective configuration", run.config, f"{run.run_id}-effective.yaml")


def _yaml(title: str, content: Mapping[str, Any], file_name: str) -> None:
    if is_long(content):
        st.markdown(f"**{title}**")
        st.info(
            f"It has more than {MAX_JOB:,} characters; `dapo show RUN --json` prints it.", icon=":material/segment:"
        )
        return
    text = shown(yaml.safe_dump(without_secrets(content), sort_keys=False, allow_unicode=True), MAX_YAML_CHARACTERS)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{title}**")
        st.download_button(
            "YAML", text, file_name, "application/yaml", key=f"download-{title}", icon=":material/download:"
        )
    st.code(text, language="yaml", height=620)
