"""The top of a run's page: in ten seconds, whether the run is well."""

import time

import streamlit as st

from dapo_core.db import ENDED_STATES, AlertRow, AttemptRow, CurvePoint, RunRow
from dapo_core.run import metrics
from dapo_core.run.formatting import ago, number, span
from dapo_dashboard import rules, session, words
from dapo_dashboard.charts import frames
from dapo_dashboard.plain import markdown, shown

Latest = dict[str, CurvePoint]


def show(run: RunRow) -> None:
    """State, step, time left, age of the last step, alerts with what to do."""
    source, now = session.source(), time.time()
    latest = source.read(("latest", run.run_id), lambda reader, _: reader.latest(run.run_id)).value
    attempts = source.read(("attempts", run.run_id), lambda reader, _: reader.attempts(run.run_id)).value
    alerts = source.read(("alerts", run.run_id), lambda reader, _: reader.alerts([run.run_id], open_only=True)).value
    _head(run)
    _figures(run, attempts, latest, now)
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


def _figures(run: RunRow, attempts: list[AttemptRow], latest: Latest, now: float) -> None:
    newest = attempts[-1] if attempts else None
    step = None if newest is None else newest.step_to if newest.step_to is not None else newest.step_from
    ended = run.state in ENDED_STATES
    left = None if ended else words.seconds_left(step, run.total_steps, words.first(latest, metrics.STEP_SECONDS))
    updated = max((point.ts for point in latest.values()), default=None)
    took = None if run.started_at is None else span((run.ended_at or now) - run.started_at)
    figures = {
        "Step": f"{'-' if step is None else step} / {run.total_steps or '?'}",
        "Time left": ("ended" if ended else "-") if left is None else span(left),
        "Last step": ago(updated, now),
        "Took" if ended else "Running for": took or "-",
        "Reward": number(words.first(latest, *words.REWARD)),
        "Accuracy": _percent(words.first(latest, *words.ACCURACY)),
        "Entropy": number(words.first(latest, metrics.ENTROPY)),
        "Length": number(words.first(latest, metrics.LENGTH_MEAN)),
        "Restarts": str(max(0, len(attempts) - 1)),
    }
    st.html(frames.figures(figures))
    if run.total_steps and step is not None and not ended:
        st.progress(min(1.0, step / run.total_steps))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _alert(alert: AlertRow) -> None:
    since = "" if alert.first_step is None else f", since step {alert.first_step}"
    seen = f" Acknowledged by {markdown(alert.acknowledged_by)}." if alert.acknowledged_by else ""
    advice = rules.ADVICE.get(alert.rule, "")
    st.error(
        f"**{markdown(alert.rule)}**{since}. {markdown(shown(alert.message, 500), 500)} {advice}"
        f" [What this means](help?topic={rules.TOPIC.get(alert.rule, 'alerts')}){seen}",
        icon=":material/warning:",
    )
