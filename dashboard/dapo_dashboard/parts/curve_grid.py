"""The curves of a run: the paper's three first, then what explains them."""

from collections.abc import Sequence

import streamlit as st

from dapo_core.db import RunRow
from dapo_dashboard import charts, marks, panels, session
from dapo_dashboard.clock import Clock
from dapo_dashboard.curve_feed import read_clock, read_curves
from dapo_dashboard.marks import Mark
from dapo_dashboard.parts import toolbar
from dapo_dashboard.parts.chart_card import draw, link
from dapo_dashboard.parts.empty import no_curves

COLUMNS = 3
SIGNS = {
    "restart": "▼ ┆ :orange[restart]",
    "suspend": "▪ ┊ :violet[stopped]",
    "alert": "◆ │ :red[alert]",
    "checkpoint": "▲ :green[checkpoint]",
}


def show(run: RunRow) -> None:
    """Toolbar, charts, and any other metric that is asked for."""
    names = session.source().read(("names", run.run_id), lambda reader, _: reader.metrics(run.run_id)).value
    view, more = toolbar.show(names)
    shown = [*panels.ALL, *(panels.free_panel(name) for name in more if name in names)]
    reading = read_curves(session.source(), run.run_id, panels.wanted(shown, names), view.window)
    found = panels.build(shown, reading.value.curves)
    if not found:
        no_curves(run)
        return
    clock = Clock() if view.axis == "step" else read_clock(session.source(), run.run_id)
    happened = _marks(run)
    steps = charts.extent(found, view)
    _key(happened)
    for row in range(0, len(found), COLUMNS):
        for column, chart in zip(st.columns(COLUMNS, gap="small"), found[row : row + COLUMNS], strict=False):
            with column:
                draw(chart, view, clock, happened, steps)
    link(found, view, clock, steps)


def _marks(run: RunRow) -> list[Mark]:
    source = session.source()
    attempts = source.read(("attempts", run.run_id), lambda reader, _: reader.attempts(run.run_id)).value
    saved = source.read(("checkpoints", run.run_id), lambda reader, _: reader.checkpoints(run.run_id)).value
    alerts = source.read(("all alerts", run.run_id), lambda reader, _: reader.alerts([run.run_id])).value
    begun = [Mark("alert", alert.first_step, alert.rule) for alert in alerts if alert.first_step is not None]
    return [*marks.of_checkpoints(saved), *marks.of_attempts(attempts), *begun]


def _key(happened: Sequence[Mark]) -> None:
    """What the marks on the curves mean, and the steps at which they stand."""
    told = []
    for kind, sign in SIGNS.items():
        at = sorted({mark.step for mark in happened if mark.kind == kind})
        if at:
            listed = ", ".join(map(str, at[:4])) + (f" and {len(at) - 4} more" if len(at) > 4 else "")
            told.append(f"{sign} at {listed}")
    st.caption(" · ".join([*told, "drag over a chart to zoom all, double-click for everything"]))
