"""benchmarks/group_ledger.py: what `make chaos` finds in the records of groups and in their counts."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from recorded_steps import group, record_step

from dapo_core.objectstore import open_store
from dapo_core.run import metrics
from dapo_core.run.recording import Fate, RecordedGroup
from dapo_core.run.store_rows import CurvePoint

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RIGHT, WRONG = group("a"), group("b", right=0)


@pytest.fixture(scope="module")
def ledger() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module("group_ledger")
    finally:
        sys.path.pop(0)


def counted(step: int, generated: float = 2.0, mixed: float = 0.5, **others: float) -> dict[str, list[CurvePoint]]:
    """A step in Postgres that generated two groups and trained on one of them."""
    values = {
        metrics.GROUPS_GENERATED: generated,
        metrics.GROUPS_MIXED: mixed,
        metrics.GROUPS_TRAINED: 1.0,
        **{f"dapo/groups/{name}": value for name, value in others.items()},
    }
    return {name: [CurvePoint(step, 1, 0.0, value, None)] for name, value in values.items()}


@pytest.mark.parametrize(
    ("counts", "groups", "expected"),
    [
        pytest.param({}, [RIGHT, WRONG], {}, id="balanced"),
        pytest.param({}, None, {"unrecorded": [7]}, id="no record"),
        pytest.param({}, [RIGHT, WRONG, WRONG], {"twice": ["b"], "differing": [7]}, id="a group twice"),
        pytest.param({}, [RIGHT], {"differing": [7]}, id="a group is missing"),
        pytest.param({"generated": 3.0, "mixed": 2 / 3}, [RIGHT, WRONG], {}, id="one is carried"),
        pytest.param({"stale": 1.0}, [RIGHT, WRONG], {"differing": [7]}, id="a stale group is missing"),
        pytest.param(
            {"dropped": 1.0}, [RIGHT, WRONG, replace(group("c"), fate=Fate.SURPLUS)], {}, id="one is too many"
        ),
        pytest.param(
            {"mixed": 0.0},
            [RIGHT, WRONG, replace(WRONG, uid="c", fate=Fate.LOST)],
            {},
            id="carried from before; one that is lost was generated",
        ),
        pytest.param({}, [replace(RIGHT, advantages=[]), WRONG], {"unread": ["a"]}, id="not in the queue"),
    ],
)
def test_a_step_is_balanced(
    ledger: Any, counts: dict[str, float], groups: Sequence[RecordedGroup] | None, expected: dict[str, list[Any]]
) -> None:
    records = {} if groups is None else {(1, 7): groups}
    found = ledger.ledger_of(counted(7, **counts), records)
    unbalanced = {name: getattr(found, name) for name in ("unrecorded", "twice", "unread", "differing")}
    assert {name: value for name, value in unbalanced.items() if value} == expected
    assert found.is_balanced == (not expected) and found.steps == 1


def test_a_group_of_two_steps_is_there_twice(ledger: Any) -> None:
    curves = {name: [*points, *counted(8)[name]] for name, points in counted(7).items()}
    found = ledger.ledger_of(curves, {(1, 7): [RIGHT, WRONG], (1, 8): [RIGHT, replace(WRONG, uid="c")]})
    assert (found.twice, found.differing, found.trained) == (["a"], [], 2)


def test_the_records_of_an_object_store(ledger: Any, tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    record_step(url, "r", 7, attempt=2)
    found = ledger.read_records(open_store(url), "r", [(2, 7), (2, 8)])
    assert {each: [one.uid for one in groups] for each, groups in found.items()} == {(2, 7): ["g0", "g1"]}
