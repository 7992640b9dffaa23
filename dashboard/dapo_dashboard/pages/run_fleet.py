"""What a run's time was spent on, and its pods in time: the upper part of the timeline."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from dapo_core.db import AttemptRow, EventRow, MetadataReader, RunRow
from dapo_core.jobspec.layout import Layout
from dapo_core.run.effective_time import EffectiveTime, effective_time
from dapo_core.run.formatting import duration, percent
from dapo_core.run.metrics import ENGINES_WAITED, STEP_SECONDS
from dapo_dashboard import context
from dapo_dashboard.charts import fleet_lanes
from dapo_dashboard.escaping import figures_html, shown

SYNC_SECONDS: Final = "timing_s/update_weights"
# Moments of weight updates that are drawn, and how often whole curves are read for the time that was spent.
MAX_SYNCS: Final = 300
TIME_AGE_SECONDS: Final = 60.0
_CAUSES: Final = 5
_MOST_PODS: Final = 9999


def show(run: RunRow, attempts: Sequence[AttemptRow], events: Sequence[EventRow]) -> None:
    """Figures of the time, and a chart with a lane for each pod."""
    reader = context.reader()
    spent = reader.read(("spent", run.run_id), lambda db, _: _spent(db, run.run_id), TIME_AGE_SECONDS).value
    st.html(figures_html(time_figures(spent)))
    syncs = reader.read(("syncs", run.run_id), lambda db, _: db.moments(run.run_id, SYNC_SECONDS, MAX_SYNCS)).value
    sent = [moment for _, moment in syncs]
    fleet = fleet_lanes.fleet_of(run.name, pods_of(run.spec), attempts, events, time.time(), sent)
    if not fleet.spans:
        return
    st.markdown("**Pods**" + (f" ({fleet.hidden} more are not shown)" if fleet.hidden else ""))
    st.echarts_chart(
        fleet_lanes.fleet_chart(fleet, sent),
        height=fleet_lanes.fleet_height(fleet),
        key="fleet",
        alt=f"{len(fleet.lanes)} pods in time, with {len(fleet.marks)} events",
    )


def _spent(db: MetadataReader, run_id: str) -> EffectiveTime:
    steps, waited = (db.curve(run_id, name) for name in (STEP_SECONDS, ENGINES_WAITED))
    return effective_time(db.attempts(run_id), steps, time.time(), waited)


def time_figures(spent: EffectiveTime) -> dict[str, str]:
    """Names and values: the effective training time, and the largest causes of the rest. Pure."""
    figures = {
        "Effective time (ETTR)": percent(spent.ratio),
        "With pods": duration(spent.held),
        "Useful": duration(spent.useful),
    }
    lost = list(spent.lost.items())[:_CAUSES]
    return figures | {f"Lost: {shown(cause, 40)}": duration(seconds) for cause, seconds in lost}


def pods_of(spec: Mapping[str, Any]) -> dict[Any, int]:
    """How many pods of each role an attempt of the job on record starts with; what its writer made of the numbers is
    not trusted. Pure."""
    topology = (spec.get("spec") or {}).get("topology") or {}
    counts = [_count((topology.get(role) or {}).get("replicas")) for role in ("trainer", "rollout")]
    return dict(Layout(topology.get("mode") == "Separated", counts[0], 0, counts[1], 0).pods)


def _count(value: object) -> int:
    return min(max(value, 0), _MOST_PODS) if isinstance(value, int) else 1
