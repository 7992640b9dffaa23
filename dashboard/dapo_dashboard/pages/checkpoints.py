"""Checkpoints: what is safe, how good each was, and the command that goes on from it."""

import streamlit as st

from dapo_core.db import CheckpointRow, RunRow
from dapo_core.run.checkpoint import newest_committed
from dapo_core.run.formatting import moment
from dapo_core.run.metrics import validation_means
from dapo_dashboard import session
from dapo_dashboard.pages import steady_table
from dapo_dashboard.plain import shown

STATES = {
    "uploading": "… uploading",
    "committed": "✓ committed: every file's sum is in its manifest",
    "failed": "✗ failed",
    "deleting": "being removed",
    "deleted": "removed",
}
COLUMNS = {
    "Size": st.column_config.NumberColumn(format="bytes"),
    "Validation": st.column_config.NumberColumn(format="%.2f%%", help="mean@k of the first validation set"),
    "State": st.column_config.TextColumn(width=300),
    "Where": st.column_config.TextColumn(width=420),
}


def show(run: RunRow) -> None:
    """The table, and how to go on from the chosen one."""
    rows = session.source().read(("checkpoints", run.run_id), lambda reader, _: reader.checkpoints(run.run_id)).value
    if not rows:
        st.info("No checkpoint yet; `schedule.checkpointEvery` says how often one is made.", icon=":material/save:")
        return
    hidden = st.toggle("Also those that were removed", key="removed", bind="query-params")
    kept = [row for row in rows if hidden or row.state not in ("deleted", "deleting")]
    if not kept:
        st.info("All checkpoints of this run were removed.", icon=":material/delete:")
        return
    selection = steady_table.draw(
        _table(kept),
        [f"{row.step} {row.attempt}" for row in kept],
        key="checkpoints-table",
        column_config=COLUMNS,
        selection_mode="single-row-required",
        alt=f"Table of {len(kept)} checkpoints",
    )
    _way_on(kept[next(iter(selection["rows"]), 0)], newest_committed(rows))


def _table(rows: list[CheckpointRow]) -> dict[str, list[object]]:
    return {
        "Step": [row.step for row in rows],
        "State": [STATES.get(row.state, row.state) for row in rows],
        "Validation": [_validation(row) for row in rows],
        "Size": [row.size_bytes for row in rows],
        "Files": [row.files for row in rows],
        "Attempt": [row.attempt for row in rows],
        "When": [moment(row.updated_at) for row in rows],
        "Why": [shown(row.decision or "", 200) for row in rows],
        "Where": [shown(row.uri, 400) for row in rows],
    }


def _validation(row: CheckpointRow) -> float | None:
    first = next(iter(validation_means(row.metrics)), None)
    return None if first is None else 100 * row.metrics[first]


def _way_on(row: CheckpointRow, newest: CheckpointRow | None) -> None:
    if row.state != "committed":
        st.caption(f"Step {row.step} can not be resumed from.")
        return
    if newest is not None and row.step == newest.step:
        st.markdown(f"**Go on with this run** from step {row.step}, its newest checkpoint:")
        st.code(f"dapo resume {row.run_id}", language="bash")
    st.markdown(f"**Start another run** from step {row.step}:")
    st.code(f"dapo run job.yaml --set checkpoints.resumeFrom={row.run_id}@{row.step}", language="bash")
