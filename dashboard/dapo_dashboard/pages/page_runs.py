"""The page of all runs: find the one that needs attention among a thousand."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import streamlit as st

from dapo_core.db import RunTableRow
from dapo_dashboard import context
from dapo_dashboard.pages.widgets import Selection, go, no_runs, steady_table
from dapo_dashboard.reads import run_list
from dapo_dashboard.reads.cached_reader import NothingReadError, Reading
from dapo_dashboard.reads.comparison import MAX_COMPARED
from dapo_dashboard.reads.run_columns import (
    ORDERS,
    STATE_COLORS,
    STATE_ICONS,
    Filters,
    columns,
    selected,
    state_label,
    tags_of,
)

COLUMNS = {
    "Run": st.column_config.TextColumn(pinned=True, width=250),
    "State": st.column_config.TextColumn(width=110),
    "Alerts": st.column_config.NumberColumn(width=60, help="Guards that are exceeded now"),
    "Done": st.column_config.ProgressColumn(min_value=0, max_value=100, format="%.0f%%", width=110),
    "Step": st.column_config.TextColumn(width=90),
    "Validation": st.column_config.NumberColumn(
        format="%.1f%%", width=85, help="Mean accuracy on the run's first validation set, at its last validation"
    ),
    "Best": st.column_config.NumberColumn(format="%.1f%%", width=70, help="The highest of all its validations"),
    "Best at step": st.column_config.NumberColumn(width=95),
    "Reward curve": st.column_config.LineChartColumn(
        width=130, help="Before filtering, from the first step to the last"
    ),
    "Reward": st.column_config.NumberColumn(format="%.3f", width=75),
    "Training accuracy": st.column_config.NumberColumn(
        format="%.1f%%", width=130, help="Of the responses that the last step generated"
    ),
    "Entropy": st.column_config.NumberColumn(format="%.3f", width=75, help="Nats per token"),
    "Length": st.column_config.NumberColumn(format="%.0f", width=70, help="Mean tokens of a response"),
    "Time left": st.column_config.TextColumn(width=85),
    "Last step": st.column_config.TextColumn(width=95),
    "Restarts": st.column_config.NumberColumn(width=75),
    "GPUs": st.column_config.NumberColumn(width=60),
    "Namespace": st.column_config.TextColumn(width=110),
    "Owner": st.column_config.TextColumn(width=110),
    "Tags": st.column_config.ListColumn(width=200),
}


def page() -> None:
    st.title("Runs", anchor=False)
    try:
        rows = _rows().value
    except NothingReadError as error:
        context.wait_for_store(error)
        return
    if not rows:
        no_runs()
    filters, order = _filters(rows)
    st.fragment(_table, run_every=context.settings().refresh_seconds)(filters, order)


def _rows() -> Reading[list[RunTableRow]]:
    reading = run_list.read_rows(context.reader())
    viewer = context.viewer()
    return Reading([row for row in reading.value if viewer.may_see(row.namespace)], reading.at, reading.problem)


def _filters(rows: Sequence[RunTableRow]) -> tuple[Filters, str]:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="filters"):
        search = st.text_input(
            "Search", key="search", bind="query-params", placeholder="run, job, owner, tag", width=230
        )
        states = st.multiselect(
            "State", list(STATE_ICONS), key="state", bind="query-params", format_func=state_label, width=230
        )
        namespaces = sorted({row.namespace for row in rows})
        chosen = st.multiselect("Namespace", namespaces, key="namespace", bind="query-params", width=190)
        tags = sorted({tag for row in rows for tag in tags_of(row)})
        tagged = st.multiselect("Tags", tags, key="tag", bind="query-params", width=190)
        order = st.selectbox("Order", list(ORDERS), key="order", bind="query-params", width=200)
        alerts = st.toggle("With alerts only", key="alerts", bind="query-params")
    return Filters(search, states, chosen, tagged, alerts), order


def _table(filters: Filters, order: str) -> None:
    reading = _rows()
    context.show_outage(reading)
    all_rows = run_list.read_rows(context.reader()).value  # of all namespaces: read once for all viewers
    beside = run_list.read_beside(context.reader(), all_rows)
    rows = selected(reading.value, filters, order, beside)
    _summary(reading.value, rows, beside.accelerators)
    if not rows:
        if reading.value:
            st.info("No run matches the filters.", icon=":material/filter_alt_off:")
        return
    selection = steady_table(
        columns(rows, beside, time.time()),
        [row.run_id for row in rows],
        key="runs-table",
        column_config=COLUMNS,
        height=min(680, 38 + 35 * len(rows)),
        selection_mode=["multi-row", "single-cell"],
        alt=f"Table of {len(rows)} runs",
    )
    _follow(selection, rows)


def _follow(selection: Selection, rows: Sequence[RunTableRow]) -> None:
    """Clicking a cell opens its run; ticked rows can be compared."""
    for position, _ in selection["cells"]:
        go("run", run=rows[position].run_id)
    ticked = [rows[position].run_id for position in selection["rows"]]
    with st.container(horizontal=True, vertical_alignment="center"):
        if ticked and st.button(f"Compare {len(ticked)}", icon=":material/compare_arrows:", type="primary"):
            go("compare", runs=ticked[:MAX_COMPARED])
        st.caption("Click a run to open it; tick rows to compare them.")


def _summary(visible: Sequence[RunTableRow], rows: Sequence[RunTableRow], accelerators: Mapping[str, int]) -> None:
    counts = Counter(row.state for row in visible)
    busy = sum(accelerators.get(row.run_id, 0) for row in rows if row.state == "Running")
    alerts = sum(row.alerts for row in visible)
    with st.container(horizontal=True, gap="small"):
        for state in STATE_ICONS:
            if counts[state]:
                st.badge(f"{state_label(state)} {counts[state]}", color=STATE_COLORS.get(state, "gray"))
        st.badge(f"{alerts} alerts", icon=":material/warning:", color="red" if alerts else "gray")
        st.badge(f"{busy} GPUs in use", icon=":material/memory:", color="gray")
        if len(rows) != len(visible):
            st.badge(f"{len(rows)} of {len(visible)} shown", color="gray")


page()
