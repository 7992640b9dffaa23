"""Alerts of guards: raised once while they hold, cleared, acknowledged; and what a supervisor reads of its runs."""

import pytest
from metadata_store import reader, writer

from dapo_core.db import (
    AlertRow,
    AttemptRow,
    Batch,
    CheckpointRow,
    MetadataReader,
    MetadataWriter,
    Point,
    RunProgress,
    RunRow,
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
    writer.write("r", Batch(points=[*first, *second]))
    committed = CheckpointRow("r", 40, 1, "committed", "file:///x", 1.0)
    for row in (committed, CheckpointRow("r", 60, 1, "uploading", "file:///y", 1.0)):
        writer.write("r", Batch(checkpoints=[row]))
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
