"""One step of a run: its phases, its groups, all responses to a prompt, and one of them token by token.

What is looked at is in the URL: `at` is the step, `group` a group of it, `response` one of the group's responses."""

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from dapo_core.db import MetadataReader, RunRow
from dapo_core.errors import StoreError
from dapo_core.run.formatting import number
from dapo_core.run.metrics import PHASES
from dapo_core.run.recording import RecordedResponse
from dapo_dashboard import context
from dapo_dashboard.charts import step_data
from dapo_dashboard.components import component
from dapo_dashboard.escaping import markdown, shown, text_html
from dapo_dashboard.pages.widgets import clicked_row, steady_table, verdict_text
from dapo_dashboard.reads.step_records import StepRecord, read_responses, read_step, read_tokens
from dapo_dashboard.reads.stored_samples import store_url

AT, GROUP, RESPONSE = "at", "group", "response"
_SECONDS: Final = tuple(phase.metric for phase in PHASES)
COLUMNS: Final = {
    "Response": st.column_config.TextColumn(width=460),
    "Check": st.column_config.TextColumn(width=260),
    "Reward": st.column_config.NumberColumn(format="%.3f"),
    "Advantage": st.column_config.NumberColumn(format="%.3f"),
}


def show(run: RunRow) -> None:
    """The step that the URL names, or the last one."""
    latest = context.reader().read(("latest", run.run_id), lambda db, _: db.latest(run.run_id)).value
    last = max((point.step for point in latest.values()), default=0)
    if not last:
        st.info("No step is finished yet.", icon=":material/hourglass_top:")
        return
    step = _step(last)
    seconds = context.reader().read(("phases", run.run_id, step), lambda db, _: _seconds(db, run.run_id, step)).value
    try:
        url = store_url(run, context.settings())
        record = None if url is None else _record(run, url, step)
        chosen = _asked(GROUP) or ""
        _draw_step(seconds, record, chosen)
        if record is None or url is None:
            st.info(
                "Groups of this step are not in the object store: they are recorded where `schedule.logSamplesEvery` "
                "is not 0, from this version on.",
                icon=":material/database_off:",
            )
        elif chosen:
            _group(url, record, chosen)
    except StoreError as error:
        st.warning(f"Cannot read what was recorded. {markdown(error, 400)}", icon=":material/cloud_off:")


def open_step(step: int) -> None:
    """Show a step of the run of this page."""
    for name in (GROUP, RESPONSE):
        st.query_params.pop(name, None)
    st.query_params[AT] = str(step)
    st.session_state["view"] = "Steps"  # bound to the URL


def open_response(step: int, uid: str, number: int) -> None:
    """Show a response of a step, token by token."""
    open_step(step)
    st.query_params.update({GROUP: uid, RESPONSE: str(number)})


def _asked(name: str) -> str | None:
    value = st.query_params.get(name)
    return value if value and len(value) <= 200 else None


def _step(last: int) -> int:
    asked = _asked(AT) or ""
    step = max(1, min(int(asked), last)) if asked.isdecimal() and len(asked) < 12 else last
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        _go("Previous step", ":material/chevron_left:", step - 1, step > 1)
        st.markdown(f"**Step {step}** of {last}", width="content")
        _go("Next step", ":material/chevron_right:", step + 1, step < last)
    return step


def _go(label: str, icon: str, step: int, there: bool) -> None:
    st.button(label, icon=icon, on_click=open_step, args=(step,), disabled=not there)


def _seconds(db: MetadataReader, run_id: str, step: int) -> dict[str, float]:
    found = db.buckets([run_id], _SECONDS, from_step=step, to_step=step)
    return {
        name: bucket.mean
        for (_, name), buckets in found.items()
        for bucket in buckets
        if bucket.step_from == step and bucket.mean is not None
    }


def _record(run: RunRow, url: str, step: int) -> StepRecord | None:
    attempts = context.attempts(run.run_id)
    return read_step(url, run.run_id, step, attempts)


def _draw_step(seconds: Mapping[str, float], record: StepRecord | None, chosen: str) -> None:
    groups = [] if record is None else record.groups
    data = {
        "phases": step_data.phases(seconds),
        "groups": step_data.groups(groups, chosen),
        "legend": step_data.legend(groups),
    }
    component("dapo_step", "step.js", "step")(data=data, key="step-groups", on_group_change=_open_group)


def _open_group() -> None:
    """What the browser sends comes from anybody."""
    asked = st.session_state["step-groups"]["group"]
    if isinstance(asked, str) and 0 < len(asked) <= 200:
        st.query_params.pop(RESPONSE, None)
        st.query_params[GROUP] = asked


def _group(url: str, record: StepRecord, uid: str) -> None:
    group = record.group(uid)
    if group is None:
        st.info("This step has no such group.", icon=":material/search_off:")
        return
    solved = "" if group.solved is None else f" · {group.solved:.0%} right"
    st.markdown(f"**Group** · {markdown(group.reason)}{solved} · ground truth {markdown(group.ground_truth, 100)}")
    st.html(text_html(group.prompt))
    if not group.tokens_recorded:
        st.caption(
            f"Rewards {', '.join(f'{each:.3g}' for each in group.rewards)}; lengths "
            f"{', '.join(str(each) for each in group.lengths)}. Its responses are not recorded: "
            "`schedule.recordGroups` sets of how many groups they are. Those with a ring are."
        )
        return
    responses = read_responses(url, record, uid)
    place = _chosen(responses)
    if place is not None:
        _response(read_tokens(url, record, place))


def _chosen(responses: Mapping[int, RecordedResponse]) -> int | None:
    """Draw the table of responses; return the place of the one to show, which the URL names."""
    rows = list(responses.values())
    table: dict[str, list[Any]] = {
        "Verdict": [verdict_text(row.correct, row.truncated) for row in rows],
        "Reward": [row.reward for row in rows],
        "Advantage": [row.advantage for row in rows],
        "Response": [shown(row.response, 400) for row in rows],
        "Check": [shown(row.check, 400) for row in rows],
    }
    chosen = steady_table(
        table,
        [f"{row.uid} {row.number}" for row in rows],
        key="responses-table",
        column_config=COLUMNS,
        selection_mode="single-cell",
        height=min(38 + 35 * len(rows), 320),
        alt=f"Table of {len(rows)} responses",
    )
    places = list(responses)
    if (picked := clicked_row(chosen, len(places))) is not None:
        st.query_params[RESPONSE] = str(rows[picked].number)
        return places[picked]
    asked = _asked(RESPONSE)
    return next((place for place, row in responses.items() if str(row.number) == asked), None)


def _response(response: RecordedResponse) -> None:
    advantage = "none" if response.advantage is None else number(response.advantage)
    st.markdown(f"**Response {response.number}** · reward {number(response.reward)} · advantage {advantage}")
    if response.check:
        st.code(shown(response.check, 4_000), language="json", wrap_lines=True)
    component("dapo_tokens", "tokens.js", "tokens")(data=step_data.tokens(response), key="tokens")
