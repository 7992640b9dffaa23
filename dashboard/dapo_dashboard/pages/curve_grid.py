"""The curves of a run: the paper's three first, then what explains them."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from dapo_core.db import RunRow
from dapo_dashboard import session
from dapo_dashboard.charts import marks, options, panels
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.panels import Plot
from dapo_dashboard.charts.view import View
from dapo_dashboard.clock import Clock
from dapo_dashboard.pages import toolbar
from dapo_dashboard.pages.chart_card import Card, card, draw, link
from dapo_dashboard.pages.empty import no_curves
from dapo_dashboard.reads.curve_feed import RunCurves, read_clock, read_curves
from dapo_dashboard.reads.latest import Latest

Drawn = tuple[list[Card], tuple[float, float] | None]
COLUMNS = 3
_STEPS = Clock()
# Half a megabyte each.
_MADE: Final[Latest[Drawn]] = Latest(64)
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
    shown = [*panels.ALL, *(panels.free_plot(name) for name in more if name in names)]
    reading = read_curves(session.source(), run.run_id, panels.wanted(shown, names), view.window)
    clock = _STEPS if view.axis == "step" else read_clock(session.source(), run.run_id)
    happened = _marks(run)
    cards, steps = _MADE.get(
        (run.run_id, view, tuple(more)),
        (reading.value.serial, tuple(happened), clock.serial),
        lambda: _cards(shown, reading.value, view, clock, happened),
    )
    if not cards:
        no_curves(run)
        return
    _key(happened)
    draw(cards, COLUMNS)
    link([made.chart for made in cards], view, clock, steps)


def _cards(shown: Sequence[Plot], read: RunCurves, view: View, clock: Clock, happened: Sequence[Mark]) -> Drawn:
    found = panels.build(shown, read.curves)
    steps = options.extent(found, view)
    return [card(chart, view, clock, happened, steps) for chart in found], steps


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
