"""Columns of the table of runs that a viewer chose: any metric, any field of the job, and orders by them."""

from pathlib import Path

import builders
import pytest
from dashboard_data import Store
from dashboard_script import shown, store

from dapo_core.db import RunTableRow
from dapo_core.run.metrics import ENTROPY
from dapo_core.run.redaction import HIDDEN
from dapo_dashboard.reads import run_list
from dapo_dashboard.reads.cached_reader import CachedReader
from dapo_dashboard.reads.chosen_columns import (
    MAX_EXTRAS,
    OFFERED,
    Value,
    extra_columns,
    field_value,
    ordered,
    read_extras,
    understood,
)

__all__ = ["store"]

ROWS = [
    RunTableRow(
        run_id=name, name=name, namespace="default", state="Running", reason=None, message=None, created_at=0.0,
        started_at=None, ended_at=None, total_steps=None, owner=None, tags={}, attempts=1, step=None, updated_at=None,
        alerts=0, values={},
    )
    for name in "abc"
]  # fmt: skip
RATE = "field optimizer.learningRate"


@pytest.mark.parametrize(
    ("names", "read"),
    [
        pytest.param(["metric any/thing at all", RATE, RATE], ["metric any/thing at all", RATE], id="each once"),
        pytest.param(
            ["learningRate", "field ", "field a..b", 'field a"b', "field " + "a." * 11 + "a"], [], id="no names"
        ),
        pytest.param(
            ["field topology.head.podTemplate.spec.containers.0.args.1", "field rewards.0", "field a.b.-1"],
            [],
            id="items of lists, which may be secrets",
        ),
        pytest.param([f"metric {n}" for n in range(99)], [f"metric {n}" for n in range(MAX_EXTRAS)], id="too many"),
        pytest.param(list(OFFERED[-3:]), list(OFFERED[-3:]), id="what is offered"),
    ],
)
def test_names_of_columns(names: list[str], read: list[str]) -> None:
    assert understood(names) == read


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        pytest.param("optimizer.learningRate", "1e-06", 1e-6, id="a number"),
        pytest.param("model.path", "org/model", "org/model", id="text"),
        pytest.param("rewards.env", '{"KEY": "hunter2"}', None, id="a mapping"),
        pytest.param("rewards.env.KEY", "hunter2", HIDDEN, id="an environment variable"),
        pytest.param("rewards.apiKey", "hunter2", HIDDEN, id="a key"),
        pytest.param("model.path", "https://me:hunter2@host", f"https://{HIDDEN}@host", id="a password in a URL"),
        pytest.param("data.seed", "nan", "nan", id="what is no number"),
        pytest.param("data.seed", "1e999", "1e999", id="a number without end"),
    ],
)
def test_what_a_field_shows(path: str, text: str, value: Value) -> None:
    assert field_value(path, text) == value


@pytest.mark.parametrize(
    ("order", "ids"),
    [
        (f"{RATE}, highest first", "bac"),
        (f"{RATE}, lowest first", "abc"),
        ("newest first", "abc"),
        ("field data.seed, lowest first", "abc"),
    ],
    ids=["highest", "lowest", "another order", "a column that was not chosen"],
)
def test_orders_by_a_column(order: str, ids: str) -> None:
    extras = {RATE: {"a": 1e-6, "b": 1e-5}}
    assert "".join(each.run_id for each in ordered(ROWS, order, extras)) == ids


def test_a_column_of_numbers_and_text_is_text() -> None:
    assert extra_columns({RATE: {"a": 1e-6, "b": "many"}}, ROWS) == {RATE: ["1e-06", "many", None]}
    assert extra_columns({RATE: {"a": 1e-6}}, ROWS) == {RATE: [1e-6, None, None]}


def test_columns_of_stored_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.run("r", steps=3, spec=builders.dumped(builders.job(optimizer={"learningRate": 1e-5})))
    store.run("odd", steps=1, spec={"spec": [1]})
    reader = CachedReader(store.url)
    rows: list[RunTableRow] = run_list.read_rows(reader).value
    found = read_extras(reader, rows, [RATE, f"metric {ENTROPY}", "metric unknown"])
    assert found[RATE] == {"r": 1e-5} and found[f"metric {ENTROPY}"].keys() == {"r", "odd"}
    assert found["metric unknown"] == {}


def test_a_link_has_the_columns(store: Store) -> None:
    for name, rate in (("slow", 1e-6), ("fast", 1e-5)):
        store.run(name, steps=1, spec=builders.dumped(builders.job(optimizer={"learningRate": rate})))
    test = shown("runs", columns=["Best", "State"], extra=[RATE], order=f"{RATE}, highest first")
    (table,) = test.dataframe
    assert list(table.value.columns) == ["Run", "Best", "State", RATE]
    assert list(table.value["Run"]) == ["fast", "slow"]
