"""Pages without a browser: what the script puts on them."""

import io
from collections.abc import Iterator
from pathlib import Path

import builders
import dashboard_data
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import streamlit as st
from dashboard_data import Store
from servers.dashboard import SCRIPT
from streamlit.testing.v1 import AppTest

from dapo_core.db import SamplesRow
from dapo_core.objectstore import open_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    filled = Store(tmp_path)
    for name, value in {
        "DAPO_METADATA_URL": filled.url,
        "DAPO_STORE_URL": (tmp_path / "objects").as_uri(),
        "DAPO_ACKNOWLEDGE_URL": "",
        "DAPO_DASHBOARD_ACCESS": "",
    }.items():
        monkeypatch.setenv(name, value)
    st.cache_resource.clear()
    st.cache_data.clear()
    yield filled
    st.cache_resource.clear()


def shown(page: str, **query: str | list[str]) -> AppTest:
    """The page after its script has run."""
    test = AppTest.from_file(str(SCRIPT), default_timeout=60)
    for name, value in query.items():
        test.query_params[name] = value
    test.run()
    test.switch_page(f"app_pages/{page}.py")
    for name, value in query.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception, test.exception
    return test


def texts(test: AppTest) -> str:
    """All that the page says in words."""
    kinds = (test.markdown, test.caption, test.info, test.warning, test.error, test.success, test.code, test.title)
    return "\n".join(str(each.value) for kind in kinds for each in kind)


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


def _samples(store: Store, step: int, response: str) -> None:
    table = pa.table(
        {
            "prompt": ["1+1?"], "response": [response], "ground_truth": ["2"], "reward": [1.0], "accuracy": [1.0],
            "length": [3], "truncated": [False],
        }
    )  # fmt: skip
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    key = f"r/samples/step-{step}.parquet"
    open_store((store.folder / "objects").as_uri()).put_bytes(key, sink.getvalue())
    store.writer.write_samples(SamplesRow("r", step, 1, key, 1, len(sink.getvalue()), 1.0))


def test_samples_of_two_steps_stand_side_by_side(store: Store) -> None:
    store.run("r", steps=3)
    _samples(store, 0, "Answer: <b>3</b>")
    _samples(store, 10, "Answer: 2")
    test = shown("run", run="r", view="Samples")
    assert "1 samples of step 10" in texts(test)
    said = texts(test)
    assert "Step 0" in said and "Step 10" in said and "right" in said


def test_samples_that_are_gone_are_told(store: Store) -> None:
    store.run("r", steps=3)
    store.writer.write_samples(SamplesRow("r", 1, 1, "r/samples/gone.parquet", 1, 1, 1.0))
    assert "The samples can not be read" in texts(shown("run", run="r", view="Samples"))


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
        ("Curves", r"Reward\: all generated"),
        ("Results", "Best is the highest value"),
        ("Ablation", "The bar is the mean"),
        ("Differences", "These runs have the same job"),
    ],
)
def test_a_comparison(store: Store, view: str, words: str) -> None:
    for name in ("a", "b"):
        store.run(name, steps=4)
    assert words in texts(shown("compare", runs=["a", "b"], view=view))


def test_alerts_of_all_runs_and_what_to_do(store: Store) -> None:
    store.run("a", steps=1)
    store.alert("a", "EntropyCollapse", 1, "Entropy is 0.001.")
    test = shown("alerts")
    (table,) = (each.value for each in test.dataframe)
    assert list(table["Run"]) == ["a"] and "clipHigh" in table["What to do"][0]
    assert "Acknowledging is not set up" in texts(test)


def test_filters_of_the_runs_come_from_the_url(store: Store) -> None:
    for name in ("alpha", "beta"):
        store.run(name, steps=1)
    (table,) = (each.value for each in shown("runs", search="alp").dataframe)
    assert list(table["Run"]) == ["alpha"]


def test_one_topic_of_the_help(store: Store) -> None:
    said = texts(shown("help", topic="entropy"))
    assert "clip-higher" in said and "Gradient norm" not in said
