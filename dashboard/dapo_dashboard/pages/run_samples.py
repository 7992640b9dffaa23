"""Samples of a run: what the policy generated, how it was scored, and how its response to one prompt changed."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from dapo_core.db import RunRow, SamplesRow
from dapo_core.errors import StoreError
from dapo_core.objectstore import ObjectNotFoundError
from dapo_core.run.entries import Sample
from dapo_dashboard import context
from dapo_dashboard.escaping import diff_html, markdown, shown, text_html
from dapo_dashboard.pages.widgets import frame, verdict_text
from dapo_dashboard.reads.stored_samples import read_samples, store_url

VERDICTS: Final = ("all", "right", "wrong", "truncated")
COLUMNS: Final = {
    "Prompt": st.column_config.TextColumn(width=300),
    "Response": st.column_config.TextColumn(width=420),
    "Reward": st.column_config.NumberColumn(format="%.3f"),
    "Tokens": st.column_config.NumberColumn(),
}


def show(run: RunRow) -> None:
    """The samples of one step, and next to the selected one a response to the same prompt at another step."""
    rows = context.reader().read(("samples", run.run_id), lambda db, _: db.samples(run.run_id)).value
    newest = {row.step: row for row in reversed(rows)}
    if not newest:
        st.info(
            "There are no samples yet; `schedule.logSamplesEvery` sets how often they are saved.",
            icon=":material/chat:",
        )
        return
    step, other_step, verdict = _choices(sorted(newest))
    try:
        url = store_url(run, context.settings())
        if url is None:
            raise StoreError("This server does not know their object store. Set DAPO_STORE_URL to its URL.")
        samples = read_samples(url, newest[step])
        others = read_samples(url, newest[other_step]) if other_step is not None else []
    except ObjectNotFoundError:
        st.info("The samples of this step are no longer in the object store.", icon=":material/auto_delete:")
        return
    except StoreError as error:
        st.warning(f"Cannot read the samples. {markdown(error, 400)}", icon=":material/cloud_off:")
        return
    kept = [sample for sample in samples if _matches(sample, verdict)]
    _summary(samples, newest[step])
    if not kept:
        st.info("No sample of this step matches.", icon=":material/filter_alt_off:")
        return
    _sample(kept[_selected(kept)], others, step, other_step)


def _choices(steps: Sequence[int]) -> tuple[int, int | None, str]:
    """The step, the step to compare with, and the verdict to show."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        step = st.selectbox("Step", steps, index=len(steps) - 1, key="step", bind="query-params", width=140)
        others = [None, *(each for each in steps if each != step)]
        other = st.selectbox(
            "Compare with step",
            others,
            index=1 if len(others) > 1 else 0,
            key="before",
            bind="query-params",
            format_func=lambda each: "none" if each is None else str(each),
            width=180,
        )
        verdict = st.segmented_control(
            "Show", VERDICTS, default="all", required=True, key="verdict", bind="query-params"
        )
    return step, other, verdict or "all"


def _matches(sample: Sample, verdict: str) -> bool:
    return {"right": sample.is_right, "wrong": not sample.is_right, "truncated": sample.truncated}.get(verdict, True)


def _summary(samples: Sequence[Sample], row: SamplesRow) -> None:
    st.caption(
        f"{len(samples)} samples of step {row.step}, attempt {row.attempt}, some of every prompt: "
        f"{sum(sample.is_right for sample in samples)} right, {sum(sample.truncated for sample in samples)} truncated. "
        "Accuracy is on the curves. Click a sample to read it."
    )


def _selected(samples: Sequence[Sample]) -> int:
    """Draw the table; return the position of the selected row."""
    table = frame(
        {
            "Verdict": [verdict_text(sample.is_right, sample.truncated) for sample in samples],
            "Reward": [sample.reward for sample in samples],
            "Tokens": [sample.length for sample in samples],
            "Prompt": [shown(sample.prompt, 200) for sample in samples],
            "Response": [shown(sample.response, 400) for sample in samples],
            "Ground truth": [shown(sample.ground_truth, 100) for sample in samples],
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
        alt=f"Table of {len(samples)} samples",
    )
    rows = chosen.selection.rows
    return int(rows[0]) if rows and rows[0] < len(samples) else 0


def _sample(sample: Sample, others: Sequence[Sample], step: int, other_step: int | None) -> None:
    st.markdown("**Prompt**")
    st.html(text_html(sample.prompt))
    # A prompt has several responses; nothing pairs them across steps, so the first is shown.
    other = next((each for each in others if each.prompt == sample.prompt), None)
    if other_step is None or other is None:
        if other_step is not None:
            st.caption(f"Step {other_step} has no sample of this prompt.")
        _response(f"Step {step}", sample, text_html(sample.response))
        return
    first, second = (other, sample) if other_step < step else (sample, other)
    texts = diff_html(first.response, second.response)
    steps = sorted((step, other_step))
    for column, at, each, text in zip(st.columns(2), steps, (first, second), texts, strict=True):
        with column:
            _response(f"Step {at}", each, text)


def _response(title: str, sample: Sample, text: str) -> None:
    with st.container(border=True):
        color, verdict = "green" if sample.is_right else "orange", verdict_text(sample.is_right, sample.truncated)
        st.markdown(
            f"**{title}** · :{color}[{verdict}] · reward {sample.reward:.3f} · {sample.length} tokens · "
            f"ground truth {markdown(sample.ground_truth, 100)}"
        )
        st.html(text)
        if sample.details:
            st.code(shown(sample.details, 4_000), language="json", wrap_lines=True)
