"""The help page: what each curve means, with examples from real runs."""

import streamlit as st

from dapo_core.db import RunRow
from dapo_core.errors import StoreError
from dapo_core.run.guards import HEALTH_RULES
from dapo_dashboard import demo_runs
from dapo_dashboard.charts.buckets import Curve
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine
from dapo_dashboard.charts.view import ChartView, StepClock
from dapo_dashboard.help_topics import TOPICS, Topic
from dapo_dashboard.pages.chart_grid import chart_grid, draw
from dapo_dashboard.reads.cached_reader import CachedReader

# Jobs of the demo: one that learns, and one whose learning rate is too high.
HEALTHY, UNHEALTHY = "arithmetic", "arithmetic-hot"
METRICS = tuple(topic.metric for topic in TOPICS)
Pictures = dict[str, dict[str, Curve]]


def page() -> None:
    st.title("Help", anchor=False)
    chosen = st.query_params.get("topic")
    names = [topic.anchor for topic in TOPICS]
    picked = st.selectbox(
        "Topic",
        ["all", *names, "alerts"],
        index=0 if chosen not in (*names, "alerts") else ["all", *names, "alerts"].index(chosen),
        key="help-topic",
        format_func=_title,
        width=360,
    )
    pictures = _pictures()
    for topic in TOPICS:
        if picked in ("all", topic.anchor):
            _topic(topic, pictures)
    if picked in ("all", "alerts"):
        _alerts()


def _title(anchor: str) -> str:
    titles = {"all": "All topics", "alerts": "Alerts"} | {topic.anchor: topic.title for topic in TOPICS}
    return titles[anchor]


def _topic(topic: Topic, pictures: Pictures) -> None:
    st.header(topic.title, anchor=topic.anchor, divider="gray")
    text, picture = st.columns([3, 4], gap="medium")
    with text:
        st.write(topic.meaning)
        st.latex(topic.formula)
        st.markdown(f"- :material/check_circle: **Healthy**: {topic.healthy}")
        st.markdown(f"- :material/warning: **Unhealthy**: {topic.unhealthy}")
        st.markdown(f"- :material/tune: **What to change**: {topic.change}")
        st.caption(f"Metric: `{topic.metric}`")
    with picture:
        _picture(topic, pictures)


def _picture(topic: Topic, pictures: Pictures) -> None:
    lines = [
        PlotLine(name, curves[topic.metric], dash="solid" if name.startswith("healthy") else "dashed")
        for name, curves in pictures.items()
        if curves.get(topic.metric)
    ]
    if not lines:
        return
    chart = CurveChart(f"help-{topic.anchor}", topic.title, "", lines, help_anchor=topic.anchor)
    draw(chart_grid([chart], 1, ChartView(), StepClock()), f"charts-{topic.anchor}")
    st.caption("Runs of the demo.")


@st.cache_data(ttl=3600, show_spinner=False)
def _pictures() -> Pictures:
    """Curves of the demo's runs by their labels; empty if the demo cannot be unpacked."""
    try:
        reader = CachedReader(f"sqlite:///{demo_runs.unpack() / 'dapo.db'}")
        runs = reader.read(("runs",), lambda db, _: db.runs()).value
        kept = sorted((run for run in runs if run.name in (HEALTHY, UNHEALTHY)), key=_label)
        return {_label(run): _curves(reader, run.run_id) for run in kept}
    except (StoreError, OSError):
        return {}


def _label(run: RunRow) -> str:
    rate = run.spec["spec"]["optimizer"]["learningRate"]
    return f"{'healthy' if run.name == HEALTHY else 'unhealthy'}: learning rate {rate:g}"


def _curves(reader: CachedReader, run_id: str) -> dict[str, Curve]:
    curves = reader.read(("curves", run_id), lambda db, _: db.buckets([run_id], METRICS)).value
    return {name: curves.get((run_id, name), []) for name in METRICS}


def _alerts() -> None:
    st.header("Alerts", anchor="alerts", divider="gray")
    st.write(
        "A guard raises an alert after `forSteps` consecutive steps beyond its threshold, and resolves it after as "
        "many within it."
    )
    st.markdown(
        "\n".join(
            f"- **{rule.title}** (`{name}`): {rule.meaning} {rule.remedy} "
            f"[{rule.topic}](help?topic={rule.topic.anchor})"
            for name, rule in HEALTH_RULES.items()
        )
    )


page()
