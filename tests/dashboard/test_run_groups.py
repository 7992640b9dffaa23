"""The table of runs by group: of a job, a tag, or any field."""

import builders
import pytest
from dashboard_data import Store
from dashboard_script import shown, store

from dapo_core.db import RunTableRow
from dapo_core.run.annotations import RunAnnotations
from dapo_core.run.metrics import Validation
from dapo_core.run.validations import ValidationResult
from dapo_dashboard.reads.run_groups import BY_JOB, BY_PEOPLE, columns, grouped, groupings
from dapo_dashboard.reads.run_list import Beside

__all__ = ["store"]

SEED = "field data.seed"


def run(run_id: str, name: str, state: str, **tags: str) -> RunTableRow:
    return RunTableRow(
        run_id=run_id, name=name, namespace="team", state=state, reason=None, message=None, created_at=0.0,  # type: ignore[arg-type]
        started_at=None, ended_at=None, total_steps=None, owner=None, tags=tags, attempts=1, step=None,
        updated_at=None, alerts=1, values={},
    )  # fmt: skip


ROWS = [
    run("a", "dapo", "Running", sweep="1"),
    run("b", "dapo", "Failed", sweep="2"),
    run("c", "grpo", "Succeeded"),
]


def result(best: float) -> ValidationResult:
    return ValidationResult(Validation("set", "mean", 4), 0.1, 9, best, 3)


BESIDE = Beside(
    results={"a": result(0.5), "c": result(0.75)},
    said={"a": RunAnnotations(tags={"good": "ada", "new": "ada"}), "c": RunAnnotations(tags={"good": "ada"})},
)


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        pytest.param(BY_JOB, [("grpo", "c"), ("dapo", "ab")], id="job"),
        pytest.param("tag sweep", [("no tag", "c"), ("1", "a"), ("2", "b")], id="a job's tag"),
        pytest.param(BY_PEOPLE, [("good", "ac"), ("new", "a"), ("no tag", "b")], id="people's tags"),
        pytest.param("namespace", [("team", "abc")], id="namespace"),
        pytest.param("owner", [("-", "abc")], id="owner"),
        pytest.param("state", [("✓ Succeeded", "c"), ("▶ Running", "a"), ("✗ Failed", "b")], id="state"),
        pytest.param(SEED, [("-", "c"), ("0.0", "ab")], id="field"),
        pytest.param("anything typed", [("grpo", "c"), ("dapo", "ab")], id="no grouping"),
    ],
)
def test_groups_come_by_their_mean_validation(by: str, groups: list[tuple[str, str]]) -> None:
    found = grouped(ROWS, by, BESIDE, {SEED: {"a": 0.0, "b": 0.0}})
    assert [(group.name, "".join(row.run_id for row in group.rows)) for group in found] == groups


def test_a_group_s_row_is_of_all_its_runs() -> None:
    found = columns(grouped(ROWS, "namespace", BESIDE, {}), BESIDE)
    assert {name: values[0] for name, values in found.items()} == {
        "Group": "team", "Runs": 3, "Running": 1, "Failed": 1, "Alerts": 3, "Validation": 10.0, "Best": 62.5,
        "Standard error": 12.5, "Highest": 75.0, "Reward": None,
    }  # fmt: skip
    alone = columns(grouped(ROWS[1:2], "namespace", BESIDE, {}), BESIDE)
    assert alone["Best"] == alone["Standard error"] == alone["Highest"] == [None]


def test_tags_and_fields_are_offered() -> None:
    assert groupings(ROWS, BESIDE.said)[:6] == [BY_JOB, "namespace", "owner", "state", BY_PEOPLE, "tag sweep"]
    assert SEED in groupings(ROWS, {}) and BY_PEOPLE not in groupings(ROWS, {})


def test_a_link_groups_the_runs_by_any_field(store: Store) -> None:
    for name, rate in (("slow", 1e-6), ("fast", 1e-5), ("faster", 1e-5)):
        store.run(name, steps=1, spec=builders.dumped(builders.job(optimizer={"learningRate": rate})))
    groups, runs = shown("runs", grouped="field optimizer.learningRate", order="name").dataframe
    assert groups.value[["Group", "Runs"]].values.tolist() == [["1e-05", 2], ["1e-06", 1]]
    assert list(runs.value["Run"]) == ["fast", "faster", "slow"]
    assert "field optimizer.learningRate" not in runs.value.columns
