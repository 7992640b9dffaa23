"""Prompts over the steps of a run, and the search of recorded responses."""

import io
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from dashboard_data import Store
from dashboard_script import shown, store, texts
from patience import patient
from pyarrow import parquet
from recorded_steps import group, record_step

from dapo_core.db import AttemptRow, open_reader
from dapo_core.errors import StoreError
from dapo_core.naming import groups_key
from dapo_core.objectstore import open_store
from dapo_core.run.recording import prompt_id
from dapo_dashboard.reads.group_columns import COLUMNS, SCHEMA, NumberedPrompts
from dapo_dashboard.reads.prompt_history import PromptHistory, continued, prompt_history
from dapo_dashboard.reads.step_records import Limits, search_responses
from dapo_trainer.groups.group_records import groups_parquet

__all__ = ["store"]


def objects(store: Store) -> str:
    return (store.folder / "objects").as_uri()


def visit(store: Store, step: int, **rights: int) -> None:
    """A step at which so many of the four responses to each prompt are right."""
    groups = [group(f"{prompt}{step}", prompt, right) for prompt, right in rights.items()]
    open_store(objects(store)).put_bytes(groups_key("r", step, 1), groups_parquet(groups))


def read_all(store: Store, attempts: Sequence[AttemptRow]) -> PromptHistory:
    """The history, once all that is recorded has been read."""
    end = time.monotonic() + patient(60)
    history = prompt_history(objects(store), "r", attempts)
    while history.missing and time.monotonic() < end:
        history = prompt_history(objects(store), "r", attempts)
    assert not history.missing
    return history


ATTEMPTS = [AttemptRow("r", 1, 0.0, step_from=0), AttemptRow("r", 2, 9.0, step_from=20)]


@pytest.mark.parametrize(
    ("recorded", "kept"),
    [
        pytest.param([(19, 1), (20, 1), (21, 1), (30, 1)], [(19, 1), (20, 1)], id="the new attempt has yet to repeat"),
        pytest.param([(20, 1), (21, 1), (21, 2), (22, 1)], [(20, 1), (21, 2)], id="repeated"),
        pytest.param([(7, 3)], [(7, 3)], id="an attempt that is not on record"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_steps_are_those_that_the_run_went_on_from(
    recorded: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    assert continued(recorded, ATTEMPTS) == kept


def test_a_prompt_that_flips_and_one_that_is_never_solved(store: Store) -> None:
    store.run("r", steps=5)
    visit(store, 1, easy=4, hard=0, odd=1)
    visit(store, 2, easy=4, odd=3)
    visit(store, 4, hard=0, odd=0)
    attempts = open_reader(store.url).attempts("r")
    history = read_all(store, attempts)
    rows = {row.text: row for row in history.summary().itertuples()}
    assert [(name, row.seen, row.flips, row.best) for name, row in sorted(rows.items())] == [
        ("easy", 2, 0, 1.0), ("hard", 2, 0, 0.0), ("odd", 3, 2, 0.75),
    ]  # fmt: skip
    assert list(history.visits(prompt_id("math", "odd"))["step"]) == [1, 2, 4]
    assert history.prompt("gone") is None and history.sources == ["math"]
    visit(store, 5, easy=0)
    history._listed_at = -1e9
    assert read_all(store, attempts) is history
    assert list(history.visits(prompt_id("math", "easy"))["share"]) == [1.0, 1.0, 0.0], "a new step is read by itself"


def test_the_page_has_prompts_by_what_became_of_them(store: Store) -> None:
    store.run("r", steps=5)
    visit(store, 1, easy=4, hard=0, odd=1)
    visit(store, 2, easy=4, hard=0, odd=3)
    read_all(store, open_reader(store.url).attempts("r"))
    for kind, prompts in (("all", 3), ("never solved", 1), ("flipped", 1), ("solved", 2)):
        assert len(shown("run", run="r", view="Prompts", kind=kind).dataframe[0].value) == prompts, kind
    said = texts(shown("run", run="r", view="Prompts", prompt=prompt_id("math", "hard")))
    assert "seen 2 times, never solved" in said and "Right responses" in said


def test_a_page_that_is_opened_while_steps_are_read_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.run("r", steps=5)
    visit(store, 1, easy=4)
    may_read, read = threading.Event(), PromptHistory._read_missing

    def wait_and_read(history: PromptHistory) -> None:
        may_read.wait(patient(60))
        read(history)

    monkeypatch.setattr(PromptHistory, "_read_missing", wait_and_read)
    try:
        said = texts(shown("run", run="r", view="Prompts"))
    finally:
        may_read.set()
    assert "Reading the steps: 1 to go" in said and "No groups are recorded" not in said
    history = read_all(store, ATTEMPTS)
    assert not history.missing and "1 prompts at 1 steps" in texts(shown("run", run="r", view="Prompts"))


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"prompt_id": ["p"]}, id="too few columns"),
        pytest.param({name: ["x"] for name in COLUMNS}, id="words for numbers"),
        pytest.param({name: [{"a": 1} if name == "correct" else "x"] for name in COLUMNS}, id="a mapping for a list"),
    ],
)
def test_an_object_with_other_columns_is_named(store: Store, columns: dict[str, list[Any]]) -> None:
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    open_store(objects(store)).put_bytes(groups_key("r", 1, 1), sink.getvalue())
    with pytest.raises(StoreError, match=r"Cannot read the groups .*step-000001-attempt-1-groups"):
        read_all(store, ATTEMPTS)


def test_a_group_without_values_is_left_out_of_the_columns() -> None:
    rows = [
        {"prompt_id": "a", "source": "s", "prompt": "A", "fate": "new", "correct": [True, False, None, False]},
        {"prompt_id": None, "source": None, "prompt": None, "fate": None, "correct": [True]},
        {"prompt_id": "b", "source": None, "prompt": None, "fate": None, "correct": []},
        {"prompt_id": "b", "source": None, "prompt": None, "fate": None, "correct": None},
        {"prompt_id": "b", "source": None, "prompt": None, "fate": None, "correct": [True], "tokens_recorded": True},
    ]
    known = NumberedPrompts()
    found = known.columns("key", [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    assert [list(column) for column in found] == [[0, 1], [0.25, 1.0], ["new", ""], [False, True]]
    assert [(each.prompt_id, each.source, each.text) for each in known.prompts] == [("a", "s", "A"), ("b", "", "")]


@pytest.mark.parametrize(
    ("text", "rewards", "count"),
    [
        pytest.param("the sum", (None, None), 8, id="text, whatever its case"),
        pytest.param("no such", (None, None), 0, id="another text"),
        pytest.param("", (0.0, None), 4, id="rewards from"),
        pytest.param("", (None, -1.0), 4, id="rewards to"),
    ],
)
def test_responses_are_found(store: Store, text: str, rewards: tuple[float | None, float | None], count: int) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4)
    low, high = rewards
    found, searched = search_responses(
        objects(store), "r", [(2, 1), (4, 1)],
        lambda one: text in one.response.casefold()
        and (low is None or one.reward >= low)
        and (high is None or one.reward <= high),
        Limits(seconds=patient(60)),
    )  # fmt: skip
    assert (len(found), searched) == (count, 2) and all(each.step == 4 for each in found)


def test_a_search_ends_where_its_limits_are(store: Store) -> None:
    for step in range(1, 6):
        record_step(objects(store), "r", step)
    steps = [(step, 1) for step in range(1, 6)]
    found, searched = search_responses(objects(store), "r", steps, lambda _: True, Limits(most=10, seconds=60))
    assert (len(found), searched) == (10, 2) and found[0].step == 5
    assert search_responses(objects(store), "r", steps, lambda _: True, Limits(seconds=0))[1] == 1, "one at least"


def test_the_page_searches_responses(store: Store) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4)
    test = shown("run", run="r", view="Prompts", what="Responses", text="sum")
    assert "8 recorded responses" in texts(test) and len(test.dataframe[0].value) == 8


def test_a_group_without_a_prompt_is_no_prompt(store: Store) -> None:
    store.run("r", steps=5)
    unknown = replace(group("g"), prompt_id="", prompt="")
    open_store(objects(store)).put_bytes(groups_key("r", 1, 1), groups_parquet([unknown]))
    assert read_all(store, ATTEMPTS).summary().empty
    assert "0 prompts" in texts(shown("run", run="r", view="Prompts"))
