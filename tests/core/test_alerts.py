"""Alerts of guards: raised once while they hold, cleared, acknowledged; and what supervisors and pages read of runs."""

import pytest
from metadata_databases import reader, writer

from dapo_core.db import (
    AlertRow,
    AttemptRow,
    CheckpointRow,
    MetadataReader,
    MetadataWriter,
    Point,
    RunProgress,
    RunRow,
    WriteBatch,
    run_table,
)

__all__ = ["reader", "writer"]

ALERT = AlertRow("r", "EntropyCollapse", 10.0, 10.0, "Entropy is low.", "Warn", first_step=4)


def test_an_alert_that_goes_on_is_one(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.raise_alert(ALERT)
    writer.raise_alert(AlertRow("r", "EntropyCollapse", 12.0, 12.0, "Entropy is lower.", "Fail", first_step=6))
    writer.raise_alert(ALERT)  # an older one, delivered once more
    found = reader.alerts()
    assert [(alert.first_seen, alert.last_seen, alert.first_step) for alert in found] == [(10.0, 12.0, 4)]


def test_an_alert_that_comes_back_is_another(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.create_run(RunRow("r", "job", namespace="team"))
    writer.raise_alert(ALERT)
    writer.clear_alert("r", "EntropyCollapse", 20.0)
    writer.clear_alert("r", "EntropyCollapse", 21.0)
    writer.raise_alert(AlertRow("r", "EntropyCollapse", 30.0, 30.0, "Again.", "Warn"))
    writer.raise_alert(AlertRow("s", "NonFinite", 5.0, 5.0, "m", "Fail"))
    assert [(alert.first_seen, alert.cleared_at) for alert in reader.alerts(["r"])] == [(30.0, None), (10.0, 20.0)]
    assert [alert.run_id for alert in reader.alerts(open_only=True)] == ["r", "s"]
    assert [alert.first_seen for alert in reader.alerts(namespace="team", limit=1)] == [30.0]
    assert reader.run_table()[0].alerts == 1


def test_fields_of_specs(writer: MetadataWriter, reader: MetadataReader) -> None:
    """Also of runs whose writers stored what no client of ours does."""
    specs = {"r": {"data": {"seed": 7}, "model": {"path": "m"}}, "odd": [1], "null": {"data": {"seed": "\0"}}}
    for run_id, spec in specs.items():
        writer.create_run(RunRow(run_id, "job", spec={"spec": spec}))
    found = reader.spec_fields([*specs, "gone"], ["data.seed", "model.path", "model.none"])
    assert found["r"] == {"data.seed": "7", "model.path": "m"} and found["odd"] == {} and "gone" not in found


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param("\0", id="null character"),
        pytest.param("\ud83d", id="first half of a pair"),
        pytest.param("\ude00 \ud83d", id="halves in the wrong order"),
    ],
)
def test_a11_a_character_in_one_spec_leaves_the_others_readable(
    odd: str, writer: MetadataWriter, reader: MetadataReader
) -> None:
    pods = {"trainer": {"replicas": 2, "gpusPerPod": 8}, "rollout": {"replicas": 1, "gpusPerPod": 4}}
    specs = {
        "fine": {
            "topology": {"mode": "Separated", **pods},
            "data": {"validation": [{"name": "\U0001f600"}]},
            "schedule": {"validateEvery": 5, "checkpointEvery": 7},
        },
        "odd": {"topology": {"mode": odd}, "data": {"validation": [{"name": odd}]}},
    }
    for run_id, spec in specs.items():
        writer.create_run(RunRow(run_id, "job", namespace="team", total_steps=9, spec={"spec": spec}))
    progress = reader.progress(list(specs), [], [], first_steps=1, last_steps=1)
    assert (progress["fine"].validate_every, progress["fine"].checkpoint_every) == (5, 7)
    assert [(of.total_steps, of.namespace) for of in progress.values()] == [(9, "team")] * 2
    assert reader.gpus(list(specs))["fine"] == 20
    assert reader.spec_fields(list(specs), ["topology.mode"])["fine"] == {"topology.mode": "Separated"}


def test_a11_a_spec_longer_than_any_job_s_is_not_parsed_with_those_of_others(
    writer: MetadataWriter, reader: MetadataReader
) -> None:
    topology = {"topology": {"mode": "Separated", "trainer": {"replicas": 2, "gpusPerPod": 8}}}
    for run_id, rest in (("fine", "x"), ("long", "x" * run_table.MAX_SPEC)):
        schedule = {"schedule": {"validateEvery": 5, "checkpointEvery": 7}}
        writer.create_run(RunRow(run_id, "job", total_steps=9, spec={"spec": {**topology, **schedule, "rest": rest}}))
    progress = reader.progress(["fine", "long"], [], [], first_steps=1, last_steps=1)
    assert {run_id: (of.total_steps, of.checkpoint_every) for run_id, of in progress.items()} == {
        "fine": (9, 7),
        "long": (9, 0),
    }
    assert reader.gpus(["fine", "long"]) == {"fine": 16, "long": 0}
    assert reader.spec_fields(["fine", "long"], ["topology.mode"]).get("long", {}) == {}


def test_the_first_who_acknowledges_stays(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.raise_alert(ALERT)
    assert writer.acknowledge("r", "EntropyCollapse", 10.0, by="ada", at=11.0)
    assert writer.acknowledge("r", "EntropyCollapse", 10.0, by="bob", at=12.0)
    assert not writer.acknowledge("r", "NonFinite", 10.0, by="ada")
    assert [(alert.acknowledged_by, alert.acknowledged_at) for alert in reader.alerts()] == [("ada", 11.0)]


def test_progress_of_many_runs_at_once(writer: MetadataWriter, reader: MetadataReader) -> None:
    for attempt, resumed in ((1, 0), (2, 70)):
        writer.start_attempt(AttemptRow("r", attempt, 1.0, step_from=resumed))
    first = [Point.of(name, step, 1, float(step), step) for step in range(1, 91) for name in ("m", "n", "k")]
    second = [Point.of(name, step, 2, 100.0 + step, -step) for step in range(71, 81) for name in ("m", "n")]
    writer.write("r", WriteBatch(points=[*first, *second]))
    committed = CheckpointRow("r", 40, 1, "committed", "file:///x", 1.0)
    for row in (committed, CheckpointRow("r", 60, 1, "uploading", "file:///y", 1.0)):
        writer.write("r", WriteBatch(checkpoints=[row]))
    found = reader.progress(["r", "new"], ["m", "unknown"], ["n"], first_steps=3, last_steps=5)
    assert found["new"] == RunProgress("new", 0, None, None, {}, None, {})
    progress = found["r"]
    assert (progress.attempt, progress.step, progress.step_at, progress.checkpoint) == (2, 80, 180.0, committed)
    assert {name: point.value for name, point in progress.values.items()} == {"m": -80.0}
    assert {name: [step for step, _, _ in curve] for name, curve in progress.history.items()} == {
        "n": [1, 2, 3, 76, 77, 78, 79, 80]
    }
    assert progress.history["n"][-1] == (80, -80.0, None)


@pytest.mark.parametrize("count", [0, 1], ids=["none", "unknown"])
def test_progress_of_runs_that_are_not_there(count: int, reader: MetadataReader) -> None:
    assert reader.progress(["x"] * count).keys() == set(["x"] * count)
