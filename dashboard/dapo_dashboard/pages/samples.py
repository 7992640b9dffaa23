"""What the model said, how it was judged, and how its answer to one prompt changed."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from dapo_core.db import RunRow, SamplesRow
from dapo_core.errors import StoreError
from dapo_dashboard import session
from dapo_dashboard.charts.diff import diff_html, text_html
from dapo_dashboard.plain import markdown, shown
from dapo_dashboard.reads.stored_samples import Answer, read_answers, store_url

VERDICTS = ("all", "right", "wrong", "cut off")
COLUMNS = {
    "Prompt": st.column_config.TextColumn(width=300),
    "Response": st.column_config.TextColumn(width=420),
    "Reward": st.column_config.NumberColumn(format="%.3f"),
    "Tokens": st.column_config.NumberColumn(),
}


def show(run: RunRow) -> None:
    """Samples of one step, and beside them those of another."""
    rows = session.source().read(("samples", run.run_id), lambda reader, _: reader.samples(run.run_id)).value
    newest = {row.step: row for row in reversed(rows)}
    if not newest:
        st.info(
            "No samples are logged yet; `schedule.logSamplesEvery` says how often they are.", icon=":material/chat:"
        )
        return
    step, before, verdict = _choices(sorted(newest))
    try:
        url = store_url(run, session.settings())
        if url is None:
            raise StoreError("This server does not know their store: set DAPO_STORE_URL.")
        answers = read_answers(url, newest[step])
        earlier = read_answers(url, newest[before]) if before is not None else []
    except StoreError as error:
        st.warning(f"The samples can not be read. {markdown(error, 400)}", icon=":material/cloud_off:")
        return
    kept = [answer for answer in answers if _is(answer, verdict)]
    _facts(answers, newest[step])
    if not kept:
        st.info("No sample of this step is of that kind.", icon=":material/filter_alt_off:")
        return
    _one(kept[_table(kept)], earlier, step, before)


def _choices(steps: Sequence[int]) -> tuple[int, int | None, str]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        step = st.selectbox("Step", steps, index=len(steps) - 1, key="step", bind="query-params", width=140)
        earlier = [None, *(each for each in steps if each != step)]
        before = st.selectbox(
            "Compare with step",
            earlier,
            index=1 if len(earlier) > 1 else 0,
            key="before",
            bind="query-params",
            format_func=lambda each: "none" if each is None else str(each),
            width=180,
        )
        verdict = st.segmented_control(
            "Show", VERDICTS, default="all", required=True, key="verdict", bind="query-params"
        )
    return step, before, verdict or "all"


def _is(answer: Answer, verdict: str) -> bool:
    right = answer.accuracy > 0.5
    return {"right": right, "wrong": not right, "cut off": answer.truncated}.get(verdict, True)


def _facts(answers: Sequence[Answer], row: SamplesRow) -> None:
    right = sum(answer.accuracy > 0.5 for answer in answers)
    st.caption(
        f"{len(answers)} samples of step {row.step}, attempt {row.attempt}: {right} right, "
        f"{sum(answer.truncated for answer in answers)} cut off. Click one to read it."
    )


def _table(answers: Sequence[Answer]) -> int:
    table = pd.DataFrame(
        {
            "Verdict": [answer.verdict for answer in answers],
            "Reward": [answer.reward for answer in answers],
            "Tokens": [answer.length for answer in answers],
            "Prompt": [shown(answer.prompt, 200) for answer in answers],
            "Response": [shown(answer.response, 400) for answer in answers],
            "Truth": [shown(answer.ground_truth, 100) for answer in answers],
        }
    )
    chosen = st.dataframe(
        table,
        column_config=COLUMNS,
        hide_index=True,
        height=280,
        key="samples-table",
        on_select="rerun",
        selection_mode="single-row-required",
        alt=f"Table of {len(answers)} samples",
    )
    rows = chosen.selection.rows
    return int(rows[0]) if rows and rows[0] < len(answers) else 0


def _one(answer: Answer, earlier: Sequence[Answer], step: int, before: int | None) -> None:
    st.markdown("**Prompt**")
    st.html(text_html(answer.prompt))
    # Of the responses to this prompt then, the one that reads most like this one's kind: the first.
    other = next((each for each in earlier if each.prompt == answer.prompt), None)
    if before is None or other is None:
        if before is not None:
            st.caption(f"Step {before} has no sample of this prompt.")
        _response(f"Step {step}", answer, text_html(answer.response))
        return
    first, second = (other, answer) if before < step else (answer, other)
    left, right = diff_html(first.response, second.response)
    for column, name, each, text in zip(
        st.columns(2), (min(step, before), max(step, before)), (first, second), (left, right), strict=True
    ):
        with column:
            _response(f"Step {name}", each, text)


def _response(title: str, answer: Answer, text: str) -> None:
    with st.container(border=True):
        colour = "green" if answer.accuracy > 0.5 else "orange"
        st.markdown(
            f"**{title}** · :{colour}[{answer.verdict}] · reward {answer.reward:.3f} · {answer.length} tokens · "
            f"truth {markdown(answer.ground_truth, 100)}"
        )
        st.html(text)
        if answer.details:
            st.code(shown(answer.details, 4_000), language="json", wrap_lines=True)
