"""The page of one run: whether it is well, and if not, why."""

import time
from collections.abc import Sequence

import streamlit as st

from dapo_core.db import ENDED_STATES, AlertRow, MetadataReader, RunRow
from dapo_core.run.formatting import duration, number, percent
from dapo_core.run.guards import help_topic
from dapo_core.run.progress import LAST_METRICS, PACE_METRICS, progress_of
from dapo_core.run.status import Progress
from dapo_core.run.validations import ValidationResult
from dapo_dashboard import context
from dapo_dashboard.escaping import Counting, figures_html, head_html, markdown, shown
from dapo_dashboard.pages import (
    annotating,
    run_curves,
    run_details,
    run_evaluations,
    run_prompts,
    run_samples,
    run_steps,
)
from dapo_dashboard.pages.widgets import no_runs
from dapo_dashboard.reads.cached_reader import NothingReadError
from dapo_dashboard.reads.run_columns import STATE_COLORS, state_label

VIEWS = {
    "Curves": run_curves.show,
    "Steps": run_steps.show,
    "Prompts": run_prompts.show,
    "Samples": run_samples.show,
    "Checkpoints": run_details.checkpoints,
    "Evaluations": run_evaluations.show,
    "Timeline": run_details.timeline,
    "Job": run_details.job,
}


def page() -> None:
    """The whole page follows the store until the run ends."""
    name = st.query_params.get("run")
    try:
        run = context.visible_run(name) if name else None
    except NothingReadError as error:
        context.wait_for_store(error)
        return
    if run is None:
        _pick(name)
        return
    context.live(lambda: _live(run.run_id), "run", lives=run.state not in ENDED_STATES)


def _pick(name: str | None) -> None:
    """Offer the runs that the viewer may see, newest first."""
    if name:
        st.warning(f"There is no run {markdown(name, 120)}, or you may not see it.", icon=":material/search_off:")
    names = context.visible_run_ids(limit=500)
    if not names:
        no_runs()
        return
    st.selectbox("Run", names, index=None, placeholder="Choose a run", key="picked", on_change=_open_picked)


def _open_picked() -> None:
    st.query_params["run"] = st.session_state["picked"]


def _live(run_id: str) -> None:
    run = context.visible_run(run_id)
    if run is None:
        st.warning(f"The run {markdown(run_id, 120)} was deleted, or you may not see it.", icon=":material/search_off:")
        return
    context.show_outage(context.read_run(run_id))
    _status(run)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view = st.segmented_control(
            "Part of the page",
            list(VIEWS),
            default="Curves",
            required=True,
            key="view",
            bind="query-params",
            label_visibility="collapsed",
        )
        annotating.of_run(run)
    try:
        VIEWS[view or "Curves"](run)
    except NothingReadError as error:
        context.show_no_data(error)


def _status(run: RunRow) -> None:
    """The top of the page: state, step, time left, age of the last step, open alerts."""
    reader = context.reader()
    progress = reader.read(("progress", run.run_id), lambda db, _: _progress(db, run.run_id)).value
    latest = reader.read(("latest", run.run_id), lambda db, _: db.latest(run.run_id)).value
    attempts = context.attempts(run.run_id)
    alerts = reader.read(("alerts", run.run_id), lambda db, _: db.alerts([run.run_id], open_only=True)).value
    validations = reader.read(("validations", run.run_id), lambda db, _: _validations(db, run.run_id)).value
    updated = max((point.ts for point in latest.values()), default=None)
    st.html(_head(run) + _figures(run, progress, validations, len(attempts), updated))
    annotating.note(run)
    for alert in alerts:
        _alert(alert)


def _progress(db: MetadataReader, run_id: str) -> Progress:
    return progress_of(db.progress([run_id], LAST_METRICS, PACE_METRICS)[run_id])


def _validations(db: MetadataReader, run_id: str) -> list[ValidationResult]:
    return db.validations([run_id]).get(run_id, [])


def _head(run: RunRow) -> str:
    badges = [(state_label(run.state), STATE_COLORS.get(run.state, "gray"))]
    badges += [(f"{name}={value}", "gray") for name, value in sorted(run.tags.items())]
    about = [f"job {run.name}", f"namespace {run.namespace}", *([f"owner {run.owner}"] if run.owner else [])]
    why = f" · {run.reason or ''}: {run.message}" if run.message else ""
    return head_html(run.run_id, badges, " · ".join(about) + why)


def _figures(
    run: RunRow, progress: Progress, validations: Sequence[ValidationResult], attempts: int, updated: float | None
) -> str:
    now, step, ended = time.time(), progress.step, run.state in ENDED_STATES
    left = None if ended else progress.eta
    figures: dict[str, str | Counting] = {
        "Step": f"{'-' if step is None else step} / {run.total_steps or '?'}",
        "Time left": left or ("ended" if ended else "-"),
        "Last step": "-" if updated is None else Counting(now - updated, "ago"),
        "Duration" if ended else "Running for": _took(run, now),
        **(_validated(validations[0]) if validations else {}),
        "Reward": number(progress.reward),
        "Training accuracy": percent(progress.accuracy),
        "Entropy": number(progress.entropy),
        "Length": number(progress.response_length),
        "Restarts": str(max(0, attempts - 1)),
    }
    done = min(1.0, step / run.total_steps) if run.total_steps and step is not None and not ended else None
    return figures_html(figures, done)


def _took(run: RunRow, now: float) -> str | Counting:
    if run.started_at is None:
        return "-"
    return Counting(now - run.started_at) if run.ended_at is None else duration(run.ended_at - run.started_at)


def _validated(result: ValidationResult) -> dict[str, str]:
    title = f"{result.validation.set_name} {result.validation.title}"
    return {title: percent(result.last), f"Best at step {result.best_step}": percent(result.best)}


def _alert(alert: AlertRow) -> None:
    since = "" if alert.first_step is None else f", since step {alert.first_step}"
    seen = f" Acknowledged by {markdown(alert.acknowledged_by)}." if alert.acknowledged_by else ""
    st.error(
        f"**{markdown(alert.rule)}**{since}. {markdown(shown(alert.message, 500), 500)}"
        f" [What this means](help?topic={help_topic(alert.rule)}){seen}",
        icon=":material/warning:",
    )


page()
