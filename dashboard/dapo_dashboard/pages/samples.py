"""What the model said, how it was judged, and how its response to one prompt changed."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from dapo_core.db import RunRow, SamplesRow
from dapo_core.errors import StoreError
from dapo_core.run.samples import Sample
from dapo_dashboard import session
from dapo_dashboard.charts.diff import diff_html, text_html
from dapo_dashboard.plain import markdown, shown
from dapo_dashboard.reads.stored_samples import read_samples, store_url, verdict

VERDICTS = ("all", "right", "wrong", "truncated")
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
    step, before, shown_verdict = _choices(sorted(newest))
    try:
        url = store_url(run, session.settings())
        if url is None:
            raise StoreError("This server does not know their store: set DAPO_STORE_URL.")
        samples = read_samples(url, newest[step])
        earlier = read_samples(url, newest[before]) if before is not None else []
    except StoreError as error:
        st.warning(f"The samples cannot be read. {markdown(error, 400)}", icon=":material/cloud_off:")
        return
    kept = [sample for sample in samples if _is(sample, shown_verdict)]
    _facts(samples, newest[step])
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


def _is(sample: Sample, shown_verdict: str) -> bool:
    kinds = {"right": sample.is_right, "wrong": not sample.is_right, "truncated": sample.truncated}
    return kinds.get(shown_verdict, True)


def _facts(samples: Sequence[Sample], row: SamplesRow) -> None:
    right = sum(sample.is_right for sample in samples)
    st.caption(
        f"{len(samples)} samples of step {row.step}, attempt {row.attempt}: {right} right, "
        f"{sum(sample.truncated for sample in samples)} truncated. Click one to read it."
    )


def _table(samples: Sequence[Sample]) -> int:
    table = pd.DataFrame(
        {
            "Verdict": [verdict(sample) for sample in samples],
            "Reward": [sample.reward for sample in samples],
            "Tokens": [sample.length for sample in samples],
            "Prompt": [shown(sample.prompt, 200) for sample in samples],
            "Response": [shown(sample.response, 400) for sample in samples],
            "Truth": [shown(sample.ground_truth, 100) for sample in samples],
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


def _one(sample: Sample, earlier: Sequence[Sample], step: int, before: int | None) -> None:
    st.markdown("**Prompt**")
    st.html(text_html(sample.prompt))
    # Of the responses to this prompt then, the one that reads most like this one's kind: the first.
    other = next((each for each in earlier if each.prompt == sample.prompt), None)
    if before is None or other is None:
        if before is not None:
            st.caption(f"Step {before} has no sample of this prompt.")
        _response(f"Step {step}", sample, text_html(sample.response))
        return
    first, second = (other, sample) if before < step else (sample, other)
    left, right = diff_html(first.response, second.response)
    for column, name, each, text in zip(
        st.columns(2), (min(step, before), max(step, before)), (first, second), (left, right), strict=True
    ):
        with column:
            _response(f"Step {name}", each, text)


def _response(title: str, sample: Sample, text: str) -> None:
    with st.container(border=True):
        colour = "green" if sample.is_right else "orange"
        st.markdown(
            f"**{title}** · :{colour}[{verdict(sample)}] · reward {sample.reward:.3f} · {sample.length} tokens · "
            f"truth {markdown(sample.ground_truth, 100)}"
        )
        st.html(text)
        if sample.details:
            st.code(shown(sample.details, 4_000), language="json", wrap_lines=True)
