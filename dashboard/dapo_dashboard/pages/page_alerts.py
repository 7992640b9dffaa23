"""The page of alerts: which guards of which runs are exceeded, since when, and who acknowledged it."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import streamlit as st

from dapo_core.db import AlertRow, open_writer
from dapo_core.errors import StoreError
from dapo_core.run.formatting import duration, moment
from dapo_core.run.guards import HEALTH_RULES
from dapo_dashboard import context
from dapo_dashboard.escaping import markdown, shown
from dapo_dashboard.pages.widgets import Selection, go, steady_table
from dapo_dashboard.reads.cached_reader import NothingReadError, Reading
from dapo_dashboard.reads.page_reads import note_time

MAX_ALERTS: Final = 2_000
COLUMNS: Final = {
    "Run": st.column_config.TextColumn(pinned=True, width=240),
    "Message": st.column_config.TextColumn(width=760),
}


def page() -> None:
    st.title("Alerts", anchor=False)
    context.live(_live, "alerts")


def _live() -> None:
    try:
        reading = _visible()
    except NothingReadError as error:
        context.show_no_data(error)
        return
    context.show_outage(reading)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        resolved = st.toggle("Show resolved", key="past", bind="query-params")
        acknowledged = st.toggle("Show acknowledged", value=True, key="seen", bind="query-params")
        names = st.multiselect("Guard", list(HEALTH_RULES), key="rule", bind="query-params", width=320)
    kept = [
        alert
        for alert in reading.value
        if (resolved or alert.cleared_at is None)
        and (acknowledged or alert.acknowledged_by is None)
        and (not names or alert.rule in names)
    ]
    if not kept:
        _nothing(reading.value)
        return
    selection = steady_table(
        _table(kept),
        [f"{alert.run_id} {alert.rule} {alert.first_seen}" for alert in kept],
        key="alerts-table",
        column_config=COLUMNS,
        height=min(640, 38 + 35 * len(kept)),
        selection_mode=["multi-row", "single-cell"],
        alt=f"Table of {len(kept)} alerts",
    )
    _act(kept, selection)


def _nothing(alerts: Sequence[AlertRow]) -> None:
    """No alert to show: none is active, or the filters hide all that are."""
    active = sum(alert.cleared_at is None for alert in alerts)
    if active:
        st.info(
            f"No alert matches the filters; {active} active {'alert is' if active == 1 else 'alerts are'} hidden.",
            icon=":material/filter_alt_off:",
        )
    else:
        st.success("No active alerts: every run with guards is within its limits.", icon=":material/check_circle:")


def _visible() -> Reading[list[AlertRow]]:
    reading = context.reader().read(("alerts",), lambda db, _: db.alerts(limit=MAX_ALERTS))
    if context.viewer().namespaces is None:
        return reading
    visible = set(context.visible_run_ids())
    return replace(reading, value=[alert for alert in reading.value if alert.run_id in visible])


def _table(alerts: Sequence[AlertRow]) -> dict[str, list[object]]:
    now = time.time()
    note_time()
    return {
        "Run": [shown(alert.run_id, 128) for alert in alerts],
        "Guard": [alert.rule for alert in alerts],
        "State": ["⚠ Active" if alert.cleared_at is None else "✓ Resolved" for alert in alerts],
        "Since": [moment(alert.first_seen) for alert in alerts],
        "Duration": [duration((alert.cleared_at or now) - alert.first_seen) for alert in alerts],
        "Since step": [alert.first_step for alert in alerts],
        "Message": [shown(alert.message, 500) for alert in alerts],
        "Action": [alert.action for alert in alerts],
        "Acknowledged by": [shown(alert.acknowledged_by or "", 120) for alert in alerts],
        "Acknowledged at": ["" if alert.acknowledged_at is None else moment(alert.acknowledged_at) for alert in alerts],
    }


def _act(alerts: Sequence[AlertRow], selection: Selection) -> None:
    for position, _ in selection["cells"]:
        go("run", run=alerts[position].run_id)
    ticked = [alerts[position] for position in selection["rows"]]
    waiting = [alert for alert in ticked if alert.acknowledged_by is None]
    url = context.settings().acknowledge_url
    with st.container(horizontal=True, vertical_alignment="center"):
        if url is None:
            st.caption("Click an alert to open its run. To acknowledge alerts here, set DAPO_ACKNOWLEDGE_URL.")
            return
        if st.button(f"Acknowledge {len(waiting)}", disabled=not waiting, icon=":material/done_all:", type="primary"):
            _acknowledge(url, waiting)
        st.caption("Tick alerts to acknowledge them; click one to open its run.")


def _acknowledge(url: str, alerts: Sequence[AlertRow]) -> None:
    """The only thing that the pages write, with a database role that may do nothing else."""
    try:
        with closing(open_writer(url)) as writer:
            for alert in alerts:
                writer.acknowledge(alert.run_id, alert.rule, alert.first_seen, by=context.viewer().name)
    except StoreError as error:
        st.error(f"Not acknowledged. {markdown(error, 400)}", icon=":material/cloud_off:")
        return
    context.reader().forget(("alerts",))
    st.rerun(scope="fragment")


page()
