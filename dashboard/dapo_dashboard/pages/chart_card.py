"""One chart in its frame, and the link between all of a page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import streamlit as st

from dapo_dashboard.charts import frames, options
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.options import Chart
from dapo_dashboard.charts.plot_area import HEIGHT
from dapo_dashboard.charts.series import Option
from dapo_dashboard.charts.view import View
from dapo_dashboard.clock import Clock
from dapo_dashboard.link import link_charts
from dapo_dashboard.pages.toolbar import zoom


@dataclass(frozen=True)
class Card:
    """A chart as it is sent; it is the same for everybody who looks at it."""

    chart: Chart
    option: Option
    spoken: str


def card(chart: Chart, view: View, clock: Clock, happened: Sequence[Mark], steps: tuple[float, float] | None) -> Card:
    """The chart ready to be drawn, with its data as a table."""
    option = options.option(chart, view, clock=clock, marks=happened, steps=steps)
    option["dataset"] = {"source": pa.table(options.columns(chart, view, clock))}
    return Card(chart, option, options.spoken(chart))


def draw(cards: Sequence[Card], columns: int) -> None:
    """Rows of charts, each with its title, unit and a way to its help; a toolbar gives it as PNG and its data as CSV.

    A column is its chart's frame: one box less for each, which a browser would take its time for."""
    for row in range(0, len(cards), columns):
        places = st.columns(columns, gap="small", border=True)
        for place, made in zip(places, cards[row : row + columns], strict=False):
            with place:
                chart = made.chart
                st.html(frames.title(chart.title, chart.unit, chart.help_anchor or "all"))
                st.echarts_chart(made.option, height=HEIGHT, key=f"chart-{chart.key}", alt=made.spoken)


def link(found: Sequence[Chart], view: View, clock: Clock, steps: tuple[float, float] | None) -> None:
    """One pointer for all these charts, and zoom in one zooms all."""
    if steps is None:
        return
    places = clock.place(steps[0], view.axis), clock.place(steps[1], view.axis)
    domain = None if places[0] is None or places[1] is None else (places[0], places[1])
    sides = {re.sub(r"[^A-Za-z0-9_-]", "-", f"chart-{chart.key}"): options.grid_sides(chart) for chart in found}
    asked = link_charts(sides, domain, view.axis == "step")
    if not asked:
        return
    if asked.get("reset"):
        zoom(0, 0)
    else:
        ends = (clock.step_at(float(asked[side]), view.axis) for side in ("from", "to"))
        first, last = (round(end) if end is not None else 0 for end in ends)
        zoom(max(0, first), max(last, first + 1))
    st.rerun(scope="fragment")
