"""The top of a run's page: in ten seconds, whether the run is well."""

import time

import streamlit as st

from dapo_core.db import ENDED_STATES, AlertRow, CurvePoint, RunRow
from dapo_core.db.pages import PageReader
from dapo_core.run.formatting import ago, duration, number, percent
from dapo_core.run.guards import help_topic
from dapo_core.run.progress import LAST_METRICS, PACE_METRICS, progress_of
from dapo_core.run.status import Progress
from dapo_dashboard import session, words
from dapo_dashboard.charts import frames
from dapo_dashboard.plain import markdown, shown

Latest = dict[str, CurvePoint]


def show(run: RunRow) -> None:
    """State, step, time left, age of the last step, open alerts."""
    source, now = session.source(), time.time()
    latest = source.read(("latest", run.run_id), lambda reader, _: reader.latest(run.run_id)).value
    progress = source.read(("progress", run.run_id), lambda reader, _: _progress(reader, run.run_id)).value
    attempts = source.read(("attempts", run.run_id), lambda reader, _: reader.attempts(run.run_id)).value
    alerts = source.read(("alerts", run.run_id), lambda reader, _: reader.alerts([run.run_id], open_only=True)).value
    _head(run)
    _figures(run, progress, len(attempts), latest, now)
    for alert in alerts:
        _alert(alert)


def _head(run: RunRow) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader(markdown(run.run_id), anchor=False, width="content")
        st.badge(words.state(run.state), color=words.STATE_COLOURS.get(run.state, "gray"))
        for name, value in sorted(run.tags.items()):
            st.badge(markdown(f"{name}={value}", 60), color="gray")
    about = [f"job {run.name}", f"namespace {run.namespace}", *([f"owner {run.owner}"] if run.owner else [])]
    why = f" · {run.reason or ''}: {run.message}" if run.message else ""
    st.caption(markdown(" · ".join(about) + why, 600))


def _progress(reader: PageReader, run_id: str) -> Progress:
    return progress_of(reader.progress([run_id], LAST_METRICS, PACE_METRICS)[run_id])


def _figures(run: RunRow, progress: Progress, attempts: int, latest: Latest, now: float) -> None:
    step, ended = progress.step, run.state in ENDED_STATES
    left = None if ended else progress.eta
    updated = max((point.ts for point in latest.values()), default=None)
    took = None if run.started_at is None else duration((run.ended_at or now) - run.started_at)
    figures = {
        "Step": f"{'-' if step is None else step} / {run.total_steps or '?'}",
        "Time left": left or ("ended" if ended else "-"),
        "Last step": ago(updated, now),
        "Took" if ended else "Running for": took or "-",
        "Reward": number(progress.reward),
        "Accuracy": percent(progress.accuracy),
        "Entropy": number(progress.entropy),
        "Length": number(progress.response_length),
        "Restarts": str(max(0, attempts - 1)),
    }
    st.html(frames.figures(figures))
    if run.total_steps and step is not None and not ended:
        st.progress(min(1.0, step / run.total_steps))


def _alert(alert: AlertRow) -> None:
    since = "" if alert.first_step is None else f", since step {alert.first_step}"
    seen = f" Acknowledged by {markdown(alert.acknowledged_by)}." if alert.acknowledged_by else ""
    st.error(
        f"**{markdown(alert.rule)}**{since}. {markdown(shown(alert.message, 500), 500)}"
        f" [What this means](help?topic={help_topic(alert.rule)}){seen}",
        icon=":material/warning:",
    )
