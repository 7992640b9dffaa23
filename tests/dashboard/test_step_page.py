"""A step on a run's page: from its groups to the tokens of a response, out of what a trainer recorded."""

import json
from dataclasses import replace
from typing import Any

import pytest
from dashboard_data import Store
from dashboard_script import shown, store, texts
from recorded_steps import HOSTILE, group, record_step, response

from dapo_core.errors import StoreError
from dapo_core.naming import groups_key, tokens_key
from dapo_core.objectstore import open_store
from dapo_core.run.recording import REASONS, Fate
from dapo_dashboard.charts import step_data
from dapo_dashboard.reads.step_records import read_responses, read_step, read_tokens

__all__ = ["store"]


def sent(test: Any, name: str) -> dict[str, Any]:
    """What the component with this value was sent."""
    found = [json.loads(each.proto.json) for each in test.get("bidi_component") if each.proto.json]
    return next(data for data in found if name in data)


def objects(store: Store) -> str:
    return (store.folder / "objects").as_uri()


def test_a_step_shows_its_phases_and_its_groups(store: Store) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4, groups=6)
    test = shown("run", run="r", view="Steps", at="4")
    data = sent(test, "phases")
    assert [phase["title"] for phase in data["phases"]] == ["generate", "update"]
    assert data["phases"][1]["from"] == 40.0 and len(data["groups"]) == 6
    assert [entry["text"] for entry in data["legend"]] == [f"4 {REASONS[Fate.TRAINED]}", f"2 {REASONS[Fate.ALL_WRONG]}"]
    assert "**Step 4** of 5" in texts(test)


def test_a_group_shows_its_responses_and_one_its_tokens(store: Store) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4)
    test = shown("run", run="r", view="Steps", at="4", group="g0")
    assert "trained on" in texts(test).replace("\\", "") and len(test.dataframe[0].value) == 4
    test = shown("run", run="r", view="Steps", at="4", group="g0", response="2")
    data = sent(test, "pieces")
    assert "".join(data["pieces"]) == response("g0", 2).response and "**Response 2**" in texts(test)
    assert [measure["name"] for measure in data["measures"]] == [
        "Probability under the rollout", "Probability under the trainer", "Trainer / rollout", "Importance weight",
        "Clipped", "Entropy", "Has a loss",
    ]  # fmt: skip


def test_what_a_policy_wrote_is_text(store: Store) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4, text=HOSTILE)
    said = texts(shown("run", run="r", view="Steps", at="4", group="g0", response="1"))
    assert "<img" not in said and "&lt;img" in said


@pytest.mark.parametrize(
    ("query", "text"),
    [
        pytest.param({"at": "3"}, "Groups of this step are not in the object store", id="nothing recorded"),
        pytest.param({"at": "4", "group": "gone"}, "This step has no such group", id="another group"),
        pytest.param({"at": "4", "group": "g5"}, "Its responses are not recorded", id="a group without tokens"),
        pytest.param({"at": "-1"}, "**Step 5** of 5", id="no number"),
        pytest.param({"at": "0"}, "**Step 1** of 5", id="before the first"),
        pytest.param({"at": "99"}, "**Step 5** of 5", id="after the last"),
    ],
)
def test_a_url_that_anybody_wrote(store: Store, query: dict[str, str], text: str) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4, groups=6)
    assert text in texts(shown("run", run="r", view="Steps", **query))


def test_the_newest_attempt_that_recorded_a_step_counts(store: Store) -> None:
    store.run("r", steps=5)
    store.attempt("r", 2, 3)
    for attempt, prompt in ((1, "old"), (2, "new")):
        for step in (2, 4):
            record_step(objects(store), "r", step, attempt=attempt, text=prompt)
    attempts = store_attempts(store)
    found = {step: read_step(objects(store), "r", step, attempts) for step in (2, 4, 5)}
    assert found[5] is None
    read = [(record.attempt, record.groups[0].prompt) for record in found.values() if record is not None]
    assert read == [(1, "old"), (2, "new")]


def store_attempts(store: Store) -> Any:
    from dapo_core.db import open_reader

    return open_reader(store.url).attempts("r")


@pytest.mark.parametrize("key", [groups_key("r", 4, 1), tokens_key("r", 4, 1)], ids=["groups", "tokens"])
def test_a_file_that_is_none_is_told(store: Store, key: str) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4)
    open_store(objects(store)).put_bytes(key, b"PAR1 nothing PAR1")
    said = texts(shown("run", run="r", view="Steps", at="4", group="g0", response="1"))
    assert "Cannot read what was recorded" in said
    with pytest.raises(StoreError):
        record = read_step(objects(store), "r", 4, store_attempts(store))
        assert record is not None
        read_responses(objects(store), record, "g0")


def test_one_response_is_read_without_the_others(store: Store) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4)
    record = read_step(objects(store), "r", 4, store_attempts(store))
    assert record is not None
    heads = read_responses(objects(store), record, "g1")
    assert [head.number for head in heads.values()] == [0, 1, 2, 3] and not heads[4].token_ids
    assert read_tokens(objects(store), record, 6) == response("g1", 2)


def test_numbers_that_are_not_finite_are_sent_as_none() -> None:
    one = replace(response("g0", 0), entropies=[float("nan")] * len(response("g0", 0).pieces))
    measures = {measure["name"]: measure["values"] for measure in step_data.tokens(one)["measures"]}
    assert set(measures["Entropy"]) == {None}
    json.dumps(step_data.groups([replace(group("g0"), rewards=[float("inf")])], None), allow_nan=False)


def test_a_long_response_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_data, "MAX_TOKENS", 2)
    data = step_data.tokens(response("g0", 0))
    assert len(data["pieces"]) == 2 and data["left"] == len(response("g0", 0).pieces) - 2
    assert all(len(measure["values"]) == 2 for measure in data["measures"])


def test_steps_are_walked_through(store: Store) -> None:
    store.run("r", steps=5)
    record_step(objects(store), "r", 4)
    test = shown("run", run="r", view="Steps", at="4", group="g0", response="1")
    next(button for button in test.button if button.label == "Next step").click().run()
    assert not test.exception and "**Step 5** of 5" in texts(test)
    assert "group" not in test.query_params and "response" not in test.query_params
