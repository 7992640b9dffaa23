"""The page of all runs: find the one that needs attention among a thousand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import streamlit as st

from dapo_core.db import RunTableRow
from dapo_core.run.annotations import NONE
from dapo_dashboard import context
from dapo_dashboard.escaping import badges_html
from dapo_dashboard.pages import annotating, grouped_runs
from dapo_dashboard.pages.widgets import Selection, go, no_runs, steady_table
from dapo_dashboard.reads import chosen_columns, run_list
from dapo_dashboard.reads.cached_reader import NothingReadError, Reading
from dapo_dashboard.reads.comparison import MAX_COMPARED
from dapo_dashboard.reads.run_columns import (
    ORDERS,
    STATE_COLORS,
    STATE_ICONS,
    Filters,
    columns,
    selected,
    state_label,
    tags_of,
)
from dapo_dashboard.reads.run_list import Beside

COLUMNS = {
    "Run": st.column_config.TextColumn(pinned=True, width=250),
    "★": st.column_config.TextColumn(width=35, help="Your stars"),
    "State": st.column_config.TextColumn(width=110),
    "Alerts": st.column_config.NumberColumn(format="%d", width=60, help="Guards that are exceeded now"),
    "Validation": st.column_config.NumberColumn(
        format="%.1f%%", width=85, help="Mean accuracy on the run's first validation set, at its last validation"
    ),
    "Best": st.column_config.NumberColumn(format="%.1f%%", width=70, help="The highest of all its validations"),
    "Best at step": st.column_config.NumberColumn(format="%d", width=95),
    "Done": st.column_config.ProgressColumn(min_value=0, max_value=100, format="%.0f%%", width=110),
    "Step": st.column_config.TextColumn(width=90),
    "Reward curve": st.column_config.LineChartColumn(
        width=130, help="Before filtering, from the first step to the last"
    ),
    "Reward": st.column_config.NumberColumn(format="%.3f", width=75),
    "Training accuracy": st.column_config.NumberColumn(
        format="%.1f%%", width=130, help="Of the responses that the last step generated"
    ),
    "Entropy": st.column_config.NumberColumn(format="%.3f", width=75, help="Nats per token"),
    "Length": st.column_config.NumberColumn(format="%.0f", width=70, help="Mean tokens of a response"),
    "Time left": st.column_config.TextColumn(width=85),
    "Last step": st.column_config.DatetimeColumn(format="D MMM, HH:mm", width=110),
    "Restarts": st.column_config.NumberColumn(format="%d", width=75),
    "GPUs": st.column_config.NumberColumn(format="%d", width=60),
    "Namespace": st.column_config.TextColumn(width=110),
    "Owner": st.column_config.TextColumn(width=110),
    "Tags": st.column_config.ListColumn(width=200, help="Tags of the job, and those added in the dashboard"),
    "Note": st.column_config.TextColumn(width=260),
}


def page() -> None:
    st.title("Runs", anchor=False)
    try:
        rows = _rows().value
    except NothingReadError as error:
        context.wait_for_store(error)
        return
    if not rows:
        context.live(_no_runs, "no runs")
        return
    filters, order, layout = _filters(rows)
    context.live(lambda: _table(filters, order, layout), "runs")


def _no_runs() -> None:
    """The hint, until there is a run."""
    context.show_outage(_rows())
    no_runs()


def _rows() -> Reading[list[RunTableRow]]:
    reading = run_list.read_rows(context.reader())
    viewer = context.viewer()
    return Reading([row for row in reading.value if viewer.may_see(row.namespace)], reading.at, reading.problem)


@dataclass(frozen=True)
class TableLayout:
    """The columns that the viewer chose: `usual` ones in their order (none: all), and `extras`; and what the runs are
    grouped `by`, empty for nothing."""

    usual: Sequence[str] = ()
    extras: Sequence[str] = ()
    by: str = ""


def _layout() -> TableLayout:
    with st.popover("Columns", icon=":material/view_column:"):
        usual = st.multiselect(
            "Columns, in this order", list(COLUMNS)[1:], key="columns", bind="query-params", placeholder="all"
        )
        more = st.multiselect(
            "Any metric, or field of the job",
            chosen_columns.OFFERED,
            key="extra",
            bind="query-params",
            accept_new_options=True,
            max_selections=chosen_columns.MAX_EXTRAS,
            placeholder="metric actor/entropy, field data.seed",
        )
    return TableLayout(usual, chosen_columns.understood(more))


def _filters(rows: Sequence[RunTableRow]) -> tuple[Filters, str, TableLayout]:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="filters"):
        search = st.text_input(
            "Search", key="search", bind="query-params", placeholder="run, job, owner, tag", width=230
        )
        states = st.multiselect(
            "State", list(STATE_ICONS), key="state", bind="query-params", format_func=state_label, width=230
        )
        namespaces = sorted({row.namespace for row in rows})
        chosen = st.multiselect("Namespace", namespaces, key="namespace", bind="query-params", width=190)
        said = run_list.read_annotations(context.reader())
        tags = sorted({tag for row in rows for tag in tags_of(row, said.get(row.run_id, NONE))})
        tagged = st.multiselect("Tags", tags, key="tag", bind="query-params", width=190)
        layout = _layout()
        orders = [*ORDERS, *chosen_columns.orders_of(layout.extras)]
        layout = replace(layout, by=grouped_runs.ask(rows, said))
        order = st.selectbox("Order", orders, key="order", bind="query-params", width=200)
        alerts = st.toggle("With alerts only", key="alerts", bind="query-params")
        starred = st.toggle("Starred", key="starred", bind="query-params")
        archived = st.toggle("With archived", key="archived", bind="query-params")
    person = context.viewer().name if starred else None
    return Filters(search, states, chosen, tagged, alerts, person, archived), order, layout


def _table(filters: Filters, order: str, layout: TableLayout) -> None:
    reading = _rows()
    context.show_outage(reading)
    all_rows = run_list.read_rows(context.reader()).value  # of all namespaces: read once for all viewers
    beside = run_list.read_beside(context.reader(), all_rows)
    read = [*layout.extras, *([layout.by] if layout.by.startswith(chosen_columns.FIELD) else [])]
    extras = chosen_columns.read_extras(context.reader(), all_rows, list(dict.fromkeys(read)))
    rows = chosen_columns.ordered(selected(reading.value, filters, order, beside), order, extras)
    _summary(reading.value, rows, beside.accelerators)
    if not rows:
        if reading.value:
            st.info("No run matches the filters.", icon=":material/filter_alt_off:")
        return
    if layout.by:
        rows = grouped_runs.narrowed(rows, layout.by, beside, extras)
    extras = {name: extras[name] for name in layout.extras}
    usual = columns(rows, beside, context.viewer().name)
    wanted = ["Run", *(name for name in layout.usual if name in usual)] if layout.usual else list(usual)
    selection = steady_table(
        {**{name: usual[name] for name in wanted}, **chosen_columns.extra_columns(extras, rows)},
        [row.run_id for row in rows],
        key="runs-table",
        column_config=COLUMNS,
        height=min(680, 38 + 35 * len(rows)),
        selection_mode=["multi-row", "single-cell"],
        alt=f"Table of {len(rows)} runs",
    )
    _follow(selection, rows, beside)


def _follow(selection: Selection, rows: Sequence[RunTableRow], beside: Beside) -> None:
    """Clicking a cell opens its run; ticked rows can be compared, starred, archived and tagged."""
    for position, _ in selection["cells"]:
        go("run", run=rows[position].run_id)
    ticked = [rows[position].run_id for position in selection["rows"]]
    with st.container(horizontal=True, vertical_alignment="center"):
        number = f"{len(ticked)}" if len(ticked) <= MAX_COMPARED else f"the first {MAX_COMPARED} of {len(ticked)}"
        if ticked and st.button(f"Compare {number}", icon=":material/compare_arrows:", type="primary"):
            go("compare", runs=ticked[:MAX_COMPARED])
        if ticked:
            annotating.buttons(ticked, beside.said)
        st.caption("Click a run to open it; tick rows to compare them.")


def _summary(visible: Sequence[RunTableRow], rows: Sequence[RunTableRow], accelerators: Mapping[str, int]) -> None:
    counts = Counter(row.state for row in visible)
    busy = sum(accelerators.get(row.run_id, 0) for row in rows if row.state == "Running")
    alerts = sum(row.alerts for row in visible)
    badges = [
        (f"{state_label(state)} {counts[state]}", STATE_COLORS.get(state, "gray"))
        for state in STATE_ICONS
        if counts[state]
    ]
    badges += [(f"◆ {alerts} alerts", "red" if alerts else "gray"), (f"{busy} GPUs in use", "gray")]
    if len(rows) != len(visible):
        badges.append((f"{len(rows)} of {len(visible)} shown", "gray"))
    st.html(badges_html(badges))


page()
