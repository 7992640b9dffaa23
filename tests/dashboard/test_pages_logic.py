"""Pages without a browser: what the script puts on them."""

import time
from collections.abc import Callable

import builders
import dashboard_data
import pytest
import streamlit as st
from dashboard_data import Store
from dashboard_script import charts_of, grids_of, shown, store, texts
from servers.dashboard import SCRIPT

from dapo_core.db import EvaluationRow, open_reader
from dapo_core.errors import StoreError
from dapo_core.jobspec.guard_fields import Guard
from dapo_core.run.annotations import AnnotationRow, RunAnnotations, by_run
from dapo_core.run.guards import evaluate
from dapo_core.run.metrics import ENTROPY, GRADIENT_NORM, STEP_SECONDS, TOKENS_PROCESSED, title_of
from dapo_dashboard import context

__all__ = ["store"]

(COLLAPSED,) = evaluate(
    [Guard.model_validate({"rule": "EntropyCollapse", "action": "Warn", "threshold": 0.05, "forSteps": 1})],
    {ENTROPY: [(1, 0.001, None)]},
)


def repeated(value: float) -> Callable[[int], float]:
    return lambda _: value


def test_streamlit_finds_no_pages_of_its_own() -> None:
    assert not (SCRIPT.parent / "pages").exists(), (
        "it would open them to everybody, without the script that asks to log in"
    )


def test_what_people_say_of_a_run_is_shown_and_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.run("r", steps=1)
    said = [
        AnnotationRow("r", "note", "", "**Diverged**", "ada", 1.0),
        AnnotationRow("r", "tag", "baseline", "", "ada", 1.0),
    ]
    store.writer.annotate(said)
    test = shown("run", run="r")
    assert r"\*\*Diverged\*\* (ada)" in texts(test) and "baseline" in texts(test) and not test.text_area
    monkeypatch.setenv("DAPO_ACKNOWLEDGE_URL", store.url)
    st.cache_resource.clear()
    test = shown("run", run="r")
    test.text_area[0].set_value("Converged after all.")
    test.toggle(key="star r False").set_value(True)
    test.multiselect(key=next(each.key for each in test.multiselect if each.label == "Tags")).set_value([])
    next(each for each in test.button if each.label == "Save").click()
    test.run()
    assert not test.exception
    now = by_run(open_reader(store.url).annotations())["r"]
    me = context.viewer().name
    assert now == RunAnnotations("Converged after all.", me, {}, frozenset({me}))


def test_a_job_is_shown_without_its_secrets(store: Store) -> None:
    spec = builders.dumped(builders.job())
    spec["spec"]["topology"] = {
        "trainer": {"podTemplate": {"env": [{"name": "HF_HOME", "value": "hunter2"}]}},
        "x": {"apiKey": "hunter3", "url": "https://me:hunter4@host"},
    }
    store.run("r", steps=1, spec=spec)
    store.writer.update_run("r", config={"trainer": {"token": "hunter5", "lr": 0.5}})
    said = texts(shown("run", run="r", view="Job"))
    assert "hunter" not in said
    assert "HF_HOME" in said and "lr: 0.5" in said and "(hidden)" in said


def test_a_checkpoint_carries_the_command_that_resumes_from_it(store: Store) -> None:
    dashboard_data.restarted(store, "r")
    store.checkpoint("r", 40)
    said = texts(shown("run", run="r", view="Checkpoints"))
    assert "dapo resume r" in said and "checkpoints.resumeFrom=r@40" in said


def test_events_and_attempts(store: Store) -> None:
    dashboard_data.restarted(store, "r")
    store.event("r", "Killed", "The trainer was killed.", 30, "Warning")
    test = shown("run", run="r", view="Timeline")
    attempts, events = (each.value for each in test.dataframe)
    assert list(attempts["Ended by"]) == ["Killed", "still running"]
    assert list(events["Message"]) == ["The trainer was killed."]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("Curves", "Reward: before filtering"),
        ("Results", "A bar is the mean"),
        ("Differences", "These runs have the same job"),
    ],
)
def test_a_comparison(store: Store, view: str, words: str) -> None:
    for name in ("a", "b"):
        store.run(name, steps=4)
    assert words in texts(shown("compare", runs=["a", "b"], view=view))


def test_differences_from_a_reference_run_are_marked(store: Store) -> None:
    for name, rate in (("a", 1e-6), ("b", 1e-5), ("c", 1e-6)):
        store.run(name, steps=2, spec=builders.dumped(builders.job(optimizer={"learningRate": rate})))
    test = shown("compare", runs=["a", "b", "c"], view="Differences", reference="c")
    (table,) = test.dataframe
    assert list(table.value.columns) == ["Field", "c", "a", "b"]
    assert list(table.value.iloc[0]) == ["optimizer.learningRate", "1e-06", "1e-06", "≠ 1e-05"]
    said = texts(shown("compare", runs=["a", "b", "c"], by="field optimizer.learningRate", band="standard error"))
    assert "Reward: before filtering" in said


def test_a_comparison_by_people_s_tags(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.run(name, steps=2)
    store.writer.annotate([AnnotationRow(name, "tag", "baseline", "", "ada", 1.0) for name in ("a", "b")])
    (charts,) = charts_of(shown("compare", runs=["a", "b", "c"], by="people's tags"))
    assert [line["name"] for line in charts[0]["lines"]] == ["baseline (n=2)", "no tag"]


@pytest.mark.parametrize(
    ("asked", "titles", "said"),
    [
        pytest.param({"match": "ENTROPY|grad_norm"}, {ENTROPY, GRADIENT_NORM}, "", id="pattern"),
        pytest.param({"match": "entropy", "pin": "actor/grad_norm"}, {GRADIENT_NORM, ENTROPY}, "", id="and a pin"),
        pytest.param({"match": "no such metric"}, set(), "No metric matches", id="no match"),
        pytest.param(
            {"match": "(", "pin": "actor/grad_norm"}, None, "is not a valid regular expression", id="no pattern"
        ),
    ],
)
@pytest.mark.parametrize(
    ("page", "of"), [("compare", {"runs": ["a", "b"]}), ("run", {"run": "a"})], ids=["a comparison", "a run"]
)
def test_charts_are_searched_and_pinned(
    store: Store, page: str, of: dict[str, str | list[str]], asked: dict[str, str], titles: set[str] | None, said: str
) -> None:
    for name in ("a", "b"):
        store.run(name, steps=2)
    test = shown(page, **of, **asked)
    drawn = [chart["title"] for charts in charts_of(test) for chart in charts]
    if titles is None:
        assert len(drawn) > 3
    else:
        assert sorted(drawn) == sorted(map(title_of, titles))
    assert "pin" not in asked or drawn[0] == title_of(GRADIENT_NORM)
    assert said in texts(test)


@pytest.mark.parametrize(
    ("axis", "unit", "ends", "said"),
    [
        pytest.param("tokens", "M tokens", {"quick": 4.0, "slow": 8.0}, "Not recorded by old", id="tokens"),
        pytest.param("time", "minutes", {"quick": 4.0, "slow": 10.0}, "Training time", id="training time"),
    ],
)
def test_runs_are_compared_over(store: Store, axis: str, unit: str, ends: dict[str, float], said: str) -> None:
    for name, tokens, seconds in (("quick", 1e6, 60.0), ("slow", 2e6, 150.0)):
        store.run(name)
        shapes = {ENTROPY: float, TOKENS_PROCESSED: repeated(tokens), STEP_SECONDS: repeated(seconds)}
        store.steps(name, range(1, 5), shapes=shapes)
    store.run("old")
    store.steps("old", range(1, 5), shapes={ENTROPY: float})
    test = shown("compare", runs=["quick", "slow", "old"], x=axis, match=ENTROPY)
    (page,) = grids_of(test)
    (chart,) = page["charts"]
    found = {}
    for line in chart["lines"]:
        places = page["x"] if line["at"] < 0 else [page["x"][position] for position in page["at"][line["at"]]]
        assert line["y"] == [1, 2, 3, 4]
        found[line["name"]] = places[-1]
    assert (found, page["axis"], page["unit"], page["range"][1]) == (ends, "place", unit, max(ends.values()))
    assert said in texts(test) and f"up to {max(ends.values()):g} {unit}" in chart["spoken"]


def test_a_zoom_of_a_comparison_is_of_its_axis_and_ends_with_it(store: Store) -> None:
    for name in ("a", "b"):
        store.run(name, steps=20)
    test = shown("compare", runs=["a", "b"], **{"from": "3", "to": "6"})
    assert grids_of(test)[0]["range"] == [3, 6]
    test.segmented_control(key="x").set_value("time").run()
    assert "from" not in test.query_params and grids_of(test)[0]["range"] == [1, 20]
    (page,) = grids_of(shown("compare", runs=["a", "b"], x="time", **{"from": "60000", "to": "120000"}))
    assert (page["range"], page["unit"], page["zoomed"]) == ([1, 2], "minutes", True)


def test_b28_a_run_deleted_under_a_live_page_is_said_to_be(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.run("r", steps=1)
    found = iter([True])
    visible = context.visible_run
    monkeypatch.setattr(context, "visible_run", lambda name: visible(name) if next(found, False) else None)
    assert "was deleted" in texts(shown("run", run="r"))


def test_a_page_is_drawn_once_while_the_store_is_down(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.run("r", steps=5)
    test = shown("run", run="r")
    reader = context.reader()

    def away() -> None:
        raise StoreError("The database is away.")

    monkeypatch.setattr(reader, "_open", away)
    monkeypatch.setattr(reader, "_now", lambda: time.time() + 60)
    said = texts(test.run())
    assert "has not responded" in said and "5 / 100" in said
    monkeypatch.undo()
    monkeypatch.setattr(reader, "_now", lambda: time.time() + 120)
    assert "has not responded" not in texts(test.run())


def test_alerts_of_all_runs_and_what_to_do(store: Store) -> None:
    store.run("a", steps=1)
    store.alert("a", "EntropyCollapse", 1, COLLAPSED.message)
    test = shown("alerts")
    (table,) = (each.value for each in test.dataframe)
    assert list(table["Run"]) == ["a"] and "clipHigh" in table["Message"][0]
    assert "set DAPO_ACKNOWLEDGE_URL" in texts(test)


def test_alerts_that_the_filters_hide_are_not_denied(store: Store) -> None:
    store.run("a", steps=1)
    store.alert("a", "EntropyCollapse", 1)
    said = texts(shown("alerts", rule="NonFinite"))
    assert "No alert matches the filters; 1 active alert is hidden." in said
    assert "within its limits" not in said


@pytest.mark.parametrize("page", ["run", "alerts"])
def test_an_alert_shows_its_remedy_once(page: str, store: Store) -> None:
    store.run("a", steps=1)
    store.alert("a", "EntropyCollapse", 1, COLLAPSED.message)
    test = shown(page, run="a")
    said = texts(test) + "".join(each.value.to_string() for each in test.dataframe)
    assert said.count("clipHigh") == 1


def test_filters_of_the_runs_come_from_the_url(store: Store) -> None:
    for name in ("alpha", "beta"):
        store.run(name, steps=1)
    (table,) = (each.value for each in shown("runs", search="alp").dataframe)
    assert list(table["Run"]) == ["alpha"]


@pytest.mark.parametrize(
    ("page", "words"),
    [("runs", "Click a run to open it"), ("compare", "Choose two or more runs"), ("alerts", "No active alerts")],
)
def test_a_store_of_one_run(store: Store, page: str, words: str) -> None:
    store.run("alone", steps=1)
    assert words in texts(shown(page))


def test_one_topic_of_the_help(store: Store) -> None:
    said = texts(shown("help", topic="entropy"))
    assert "clip-higher" in said and "Gradient norm" not in said


def _estimate(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def _evaluation(step: int, mean: float) -> EvaluationRow:
    whole = {
        "prompts": 30,
        "samples": 4,
        "mean": _estimate(mean),
        "sampling_error": 0.02,
        "pass_at": {"1": _estimate(mean), "2": _estimate(mean + 0.1), "4": _estimate(mean + 0.2)},
        "majority": _estimate(mean + 0.15),
        "lengths": {"mean": 120.0, "median": 100.0, "p95": 300.0, "longest": 400},
        "truncated": 0.01,
        "unstated": 0.0,
        "failures": 0,
    }
    sampling = {"samples": 4, "temperature": 1.0, "topP": 0.7, "maxResponseTokens": 20480}
    results = {**whole, "subsets": {"2024": whole, "2025": {**whole, "prompts": 12}}}
    return EvaluationRow(f"e-{step}", "aime", f"r@{step}", "r", step, 100.0 + step, "s", sampling, results)


def test_evaluations_with_their_intervals_and_subsets(store: Store) -> None:
    store.run("r", steps=3)
    store.writer.add_evaluations([_evaluation(20, 0.25)])
    store.writer.add_evaluations([_evaluation(40, 0.5)])
    test = shown("run", run="r", view="Evaluations")
    all_of_them, subsets = (each.value for each in test.dataframe)
    assert list(all_of_them["Step"]) == [40, 20]
    assert list(all_of_them["mean@4"]) == [50.0, 25.0] and list(all_of_them["maj@4"]) == [65.0, 40.0]
    assert list(all_of_them["95% interval"]) == ["40.0% to 60.0%", "15.0% to 35.0%"]
    assert list(all_of_them["pass@4"]) == [70.0, 45.0]
    assert list(subsets["Subset"]) == ["2024", "2025"] and list(subsets["Prompts"]) == [30, 12]
    assert "mean@k by checkpoint" in texts(test) and "± 2.0 points" in texts(test)


def test_a_run_that_was_not_evaluated_says_how_to(store: Store) -> None:
    store.run("r", steps=3)
    assert "dapo evaluate r" in texts(shown("run", run="r", view="Evaluations"))
