"""The prompts of a run: how each was solved over the steps, and a search of the responses that were recorded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from dapo_core.db import Bucket, RunRow
from dapo_core.errors import StoreError
from dapo_core.run.recording import REASONS, RecordedResponse
from dapo_dashboard import context
from dapo_dashboard.charts import palette
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine
from dapo_dashboard.charts.view import ChartView, StepClock
from dapo_dashboard.escaping import markdown, shown, text_html
from dapo_dashboard.pages.chart_grid import chart_grid, draw
from dapo_dashboard.pages.run_steps import open_response, open_step
from dapo_dashboard.pages.widgets import clicked_row, frame, steady_table, verdict_text
from dapo_dashboard.reads.prompt_history import SOLVED, PromptHistory, prompt_history
from dapo_dashboard.reads.step_records import FoundResponse, search_responses
from dapo_dashboard.reads.stored_samples import store_url

PROMPT: Final = "prompt"
MAX_ROWS: Final = 500
KINDS: Final[Mapping[str, Callable[[pd.DataFrame], "pd.Series[bool]"]]] = {
    "all": lambda table: table["seen"] > 0,
    "never solved": lambda table: table["best"] == 0,
    "flipped": lambda table: table["flips"] > 0,
    "solved": lambda table: table["last"] > SOLVED,
}
_SHARE: Final = st.column_config.NumberColumn(format="percent")
COLUMNS: Final = {
    "Prompt": st.column_config.TextColumn(width=480),
    **dict.fromkeys(("First", "Last", "Best"), _SHARE),
}
FOUND_COLUMNS: Final = {
    "Response": st.column_config.TextColumn(width=480),
    "Prompt": st.column_config.TextColumn(width=240),
    "Reward": st.column_config.NumberColumn(format="%.3f"),
}


def show(run: RunRow) -> None:
    """The table of prompts and the history of one, or the search of responses."""
    what = st.segmented_control(
        "What", ("Prompts", "Responses"), default="Prompts", required=True, key="what", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    attempts = context.attempts(run.run_id)
    try:
        url = store_url(run, context.settings())
        history = None if url is None else prompt_history(url, run.run_id, attempts)
        if url is None or history is None or not (history.recorded or history.missing):
            st.info(
                "No groups are recorded: `schedule.logSamplesEvery` is 0, or they are no longer in the object store.",
                icon=":material/database_off:",
            )
            return
        if history.missing:
            st.caption(f":material/hourglass_top: Reading the steps: {history.missing:,} to go.")
            st.fragment(_when_read, run_every=context.settings().refresh_seconds)(history)
        if what == "Responses":
            _search(run, url, history)
        else:
            _prompts(history)
    except StoreError as error:
        st.warning(f"Cannot read what was recorded. {markdown(error, 400)}", icon=":material/cloud_off:")


def _when_read(history: PromptHistory) -> None:
    """Draw the page again once no step is being read."""
    if not history.is_reading:
        st.rerun()


def _filters(history: PromptHistory) -> tuple[str, str | None]:
    text = st.text_input("Text", key="text", bind="query-params", width=260, placeholder="Any text")
    source = st.selectbox(
        "Source", [None, *history.sources], key="source", width=180, format_func=lambda each: each or "all sources"
    )
    return (text or "").casefold(), source


def _prompts(history: PromptHistory) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text, source = _filters(history)
        kind = st.segmented_control("Show", list(KINDS), default="all", required=True, key="kind", bind="query-params")
    table = history.summary()
    table = table[KINDS[kind or "all"](table)]
    if text:
        table = table[table["text"].str.casefold().str.contains(text, regex=False)]
    if source is not None:
        table = table[table["source"] == source]
    rows = table.sort_values(["flips", "seen"], ascending=False).head(MAX_ROWS)
    st.caption(f"{len(table):,} prompts at {len(history.recorded):,} steps; click one for its history.")
    chosen = steady_table(
        {
            "Prompt": [shown(each, 300) for each in rows["text"]],
            "Source": [shown(each, 60) for each in rows["source"]],
            "Seen": list(rows["seen"]),
            "First": list(rows["first"]),
            "Last": list(rows["last"]),
            "Best": list(rows["best"]),
            "Flips": list(rows["flips"]),
            "Last step": list(rows["last_step"]),
        },
        list(rows["prompt_id"]),
        key="prompts-table",
        column_config=COLUMNS,
        selection_mode="single-cell",
        height=300,
        alt=f"Table of {len(rows)} prompts",
    )
    if (picked := clicked_row(chosen, len(rows))) is not None:
        st.query_params[PROMPT] = str(rows["prompt_id"].iloc[picked])
    _history(history, st.query_params.get(PROMPT, ""))


def _history(history: PromptHistory, prompt_id: str) -> None:
    """How often the prompt was solved at each step; a click opens the step."""
    prompt, visits = history.prompt(prompt_id), history.visits(prompt_id)
    if prompt is None or visits.empty:
        return
    by_step = visits.groupby("step")["share"].mean()
    shares = zip(by_step.index.tolist(), (100 * by_step).tolist(), strict=True)
    curve = [Bucket(step, step, share, share, share, share, 1, None) for step, share in shares]
    best = "never solved" if visits["share"].max() == 0 else f"at best {visits['share'].max():.0%} right"
    st.markdown(f"**Prompt**, seen {len(visits)} times, {best}")
    st.html(text_html(prompt.text))
    line = PlotLine("right", curve, color=palette.MIXED)
    chart = CurveChart("solved", "Right responses", "%", [line], from_zero=True)
    draw(chart_grid([chart], 1, ChartView(), StepClock(), opens=True), "prompt-chart", open_step=open_step)
    st.dataframe(
        frame(
            {
                "Step": visits["step"].tolist(),
                "Right": visits["share"].tolist(),
                "What became of it": [REASONS.get(fate, shown(str(fate), 60)) for fate in visits["fate"]],
                "Tokens recorded": visits["recorded"].tolist(),
            }
        ),
        hide_index=True,
        column_config={"Right": _SHARE},
        alt=f"Table of {len(visits)} groups of the prompt",
    )


def _search(run: RunRow, url: str, history: PromptHistory) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text, source = _filters(history)
        low, high = (
            st.number_input(name, value=None, key=key, width=130)
            for name, key in (("Reward from", "reward-from"), ("Reward to", "reward-to"))
        )
        before = st.number_input("Up to step", 1, value=None, key="up-to", width=130)
    steps = [each for each in history.recorded if before is None or each[0] <= before]

    def matches(response: RecordedResponse) -> bool:
        return (
            (not text or text in response.response.casefold())
            and (source is None or response.source == source)
            and (low is None or response.reward >= low)
            and (high is None or response.reward <= high)
        )

    found, searched = search_responses(url, run.run_id, steps, matches)
    earlier = steps[: len(steps) - searched]
    rest = f" Set *Up to step* to {earlier[-1][0]} to search earlier ones." if earlier else ""
    st.caption(f"{len(found)} recorded responses of {searched:,} steps, the last first. Click one to read it.{rest}")
    _found(found)


def _found(found: Sequence[FoundResponse]) -> None:
    rows: dict[str, list[Any]] = {
        "Step": [each.step for each in found],
        "Verdict": [verdict_text(each.response.correct) for each in found],
        "Reward": [each.response.reward for each in found],
        "Response": [shown(each.response.response, 400) for each in found],
        "Prompt": [shown(each.response.prompt, 200) for each in found],
        "Source": [shown(each.response.source, 60) for each in found],
    }
    chosen = steady_table(
        rows,
        [f"{each.step} {each.response.uid} {each.response.number}" for each in found],
        key="found-table",
        column_config=FOUND_COLUMNS,
        selection_mode="single-cell",
        alt=f"Table of {len(found)} responses",
    )
    if (picked := clicked_row(chosen, len(found))) is not None:
        one = found[picked]
        label = f"Tokens of response {one.response.number} at step {one.step}"
        st.button(label, on_click=open_response, args=(one.step, one.response.uid, one.response.number))
        st.html(text_html(one.response.response))
