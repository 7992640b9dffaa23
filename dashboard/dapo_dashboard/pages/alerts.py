"""The health rules over all runs: what holds, since when, and who has seen it."""

import time
from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from dapo_core.db import AlertRow, open_writer
from dapo_core.errors import StoreError
from dapo_core.run.formatting import duration, moment
from dapo_core.run.guards import HEALTH_RULES
from dapo_dashboard import session
from dapo_dashboard.link import go
from dapo_dashboard.pages import steady_table
from dapo_dashboard.pages.steady_table import Selection
from dapo_dashboard.plain import markdown, shown
from dapo_dashboard.reads.source import NothingYetError, Reading

MOST = 2_000
COLUMNS = {
    "Run": st.column_config.TextColumn(pinned=True, width=240),
    "Message": st.column_config.TextColumn(width=760),
}


def page() -> None:
    st.title("Alerts", anchor=False)
    st.fragment(_live, run_every=session.settings().refresh_seconds)()


def _live() -> None:
    try:
        reading = _visible()
    except NothingYetError as error:
        session.stop_without_data(error)
        return
    session.tell_trouble(reading)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        past = st.toggle("Also those that have passed", key="past", bind="query-params")
        seen = st.toggle("Also those acknowledged", value=True, key="seen", bind="query-params")
        names = st.multiselect("Rule", list(HEALTH_RULES), key="rule", bind="query-params", width=320)
    kept = [
        alert
        for alert in reading.value
        if (past or alert.cleared_at is None)
        and (seen or alert.acknowledged_by is None)
        and (not names or alert.rule in names)
    ]
    if not kept:
        st.success("No alert: every run that is watched is within its limits.", icon=":material/check_circle:")
        return
    selection = steady_table.draw(
        _table(kept),
        [f"{alert.run_id} {alert.rule} {alert.first_seen}" for alert in kept],
        key="alerts-table",
        column_config=COLUMNS,
        height=min(640, 38 + 35 * len(kept)),
        selection_mode=["multi-row", "single-cell"],
        alt=f"Table of {len(kept)} alerts",
    )
    _act(kept, selection)


def _visible() -> Reading[list[AlertRow]]:
    source, viewer = session.source(), session.viewer()
    reading = source.read(("alerts",), lambda reader, _: reader.alerts(limit=MOST))
    if viewer.namespaces is None:
        return reading
    rows = source.read(("pick",), lambda reader, _: reader.run_table([], limit=5_000)).value
    mine = {row.run_id for row in rows if viewer.may_see(row.namespace)}
    return replace(reading, value=[alert for alert in reading.value if alert.run_id in mine])


def _table(alerts: Sequence[AlertRow]) -> dict[str, list[object]]:
    now = time.time()
    return {
        "Run": [shown(alert.run_id, 128) for alert in alerts],
        "Rule": [alert.rule for alert in alerts],
        "State": ["⚠ holds" if alert.cleared_at is None else "✓ passed" for alert in alerts],
        "Since": [moment(alert.first_seen) for alert in alerts],
        "For": [duration((alert.cleared_at or now) - alert.first_seen) for alert in alerts],
        "Since step": [alert.first_step for alert in alerts],
        "Message": [shown(alert.message, 500) for alert in alerts],
        "Then": [alert.action for alert in alerts],
        "Acknowledged by": [shown(alert.acknowledged_by or "", 120) for alert in alerts],
        "At": ["" if alert.acknowledged_at is None else moment(alert.acknowledged_at) for alert in alerts],
    }


def _act(alerts: Sequence[AlertRow], selection: Selection) -> None:
    for position, _ in selection["cells"]:
        go("run", run=alerts[position].run_id)
    ticked = [alerts[position] for position in selection["rows"]]
    waiting = [alert for alert in ticked if alert.acknowledged_by is None]
    url = session.settings().acknowledge_url
    with st.container(horizontal=True, vertical_alignment="center"):
        if url is None:
            st.caption("Click an alert to open its run. Acknowledging is not set up on this server.")
            return
        if st.button(f"Acknowledge {len(waiting)}", disabled=not waiting, icon=":material/done_all:", type="primary"):
            _acknowledge(url, waiting)
        st.caption("Tick alerts to acknowledge them; click one to open its run.")


def _acknowledge(url: str, alerts: Sequence[AlertRow]) -> None:
    """The only thing that these pages write, with a database role that may do nothing else."""
    try:
        writer = open_writer(url)
        for alert in alerts:
            writer.acknowledge(alert.run_id, alert.rule, alert.first_seen, by=session.viewer().name)
        writer.close()
    except StoreError as error:
        st.error(f"Not acknowledged. {markdown(error, 400)}", icon=":material/cloud_off:")
        return
    session.source().forget(("alerts",))
    st.rerun(scope="fragment")


page()
