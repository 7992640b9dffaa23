"""The runs by group, above the table of runs: ticked groups are those whose runs it shows."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from dapo_core.db import RunTableRow
from dapo_core.run.annotations import RunAnnotations
from dapo_dashboard.pages.widgets import go, steady_table
from dapo_dashboard.reads import comparison, run_groups
from dapo_dashboard.reads.chosen_columns import FIELD, Extras, understood
from dapo_dashboard.reads.comparison import MAX_COMPARED
from dapo_dashboard.reads.run_groups import BY_JOB, BY_PEOPLE, TAG
from dapo_dashboard.reads.run_list import Beside

_PERCENT: Final[Mapping[str, Any]] = {"format": "%.1f%%", "width": 100}
COLUMNS: Final = {
    "Group": st.column_config.TextColumn(pinned=True, width=250),
    "Validation": st.column_config.NumberColumn(**_PERCENT, help="Mean of the runs' last validations"),
    "Best": st.column_config.NumberColumn(**_PERCENT, help="Mean of the runs' best validations"),
    "Standard error": st.column_config.NumberColumn(**_PERCENT, help="Of the best validations, over runs"),
    "Highest": st.column_config.NumberColumn(**_PERCENT, help="The best validation of all"),
    "Reward": st.column_config.NumberColumn(format="%.3f", width=75, help="Mean of the runs' last rewards"),
}


def ask(rows: Sequence[RunTableRow], said: Mapping[str, RunAnnotations]) -> str:
    """What the viewer groups by; empty for nothing. It is in the link, by a name that no other page uses: Streamlit
    removes the parameters of a page that is left, and a step has one that names its group."""
    by = st.selectbox(
        "Group by", run_groups.groupings(rows, said), index=None, key="grouped", bind="query-params", width=190,
        accept_new_options=True, placeholder="nothing", help="A tag, or any field: `field data.seed`",
    )  # fmt: skip
    return by if by and (not by.startswith(FIELD) or understood([by])) else ""


def narrowed(rows: Sequence[RunTableRow], by: str, beside: Beside, extras: Extras) -> list[RunTableRow]:
    """Draw the groups of the rows; return the rows of those that are ticked, of all if none is."""
    groups = run_groups.grouped(rows, by, beside, extras)
    chosen = steady_table(
        run_groups.columns(groups, beside),
        [group.name for group in groups],
        key=f"groups-table {by}",
        column_config=COLUMNS,
        height=min(320, 38 + 35 * len(groups)),
        selection_mode="multi-row",
        alt=f"Table of {len(groups)} groups of runs",
    )
    ticked = [groups[place] for place in chosen["rows"] if place < len(groups)]
    wanted = {row.run_id for group in ticked for row in group.rows}
    kept = [row for row in rows if not ticked or row.run_id in wanted]
    with st.container(horizontal=True, vertical_alignment="center"):
        if ticked and st.button(f"Compare {len(ticked)} groups", icon=":material/compare_arrows:"):
            go("compare", runs=[row.run_id for row in kept[:MAX_COMPARED]], by=_in_compare(by))
        st.caption("Tick groups to show their runs alone, and to compare them.")
    return kept


def _in_compare(by: str) -> str:
    """The same grouping on the page of comparisons, which has fewer."""
    if by == BY_JOB:
        return comparison.BY_JOB
    return by if by == BY_PEOPLE or by.startswith((TAG, FIELD)) else comparison.BY_RUN
