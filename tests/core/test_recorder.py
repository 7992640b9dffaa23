"""What happens to runs is written in order, whatever the store does meanwhile."""

from pathlib import Path

import pytest

from dapo_core.db import CheckpointRow, MetadataWriter, open_reader, open_writer, upgrade
from dapo_core.db.recorder import Recorder, write
from dapo_core.errors import StoreError
from dapo_core.run.entries import (
    AlertCleared,
    AlertRaised,
    AttemptEnded,
    AttemptStarted,
    Entry,
    EventOccurred,
    RunChanged,
    RunCreated,
)

STORY: list[Entry | CheckpointRow] = [
    RunCreated("job", "team", {"spec": 1}, 1.0, 9),
    AttemptStarted(1, 2.0, 0),
    RunChanged("Running", "Started", "", 2.0, None),
    EventOccurred(3.0, "Normal", "Started", "Attempt 1 started.", 1),
    AlertRaised("NonFinite", 4.0, 3, "NaN.", "Warn"),
    CheckpointRow("r", 3, 1, "committed", "file:///c", 4.0),
    AlertCleared("NonFinite", 5.0),
    AttemptEnded(1, 6.0, "Completed", "Done.", 0, None),
    RunChanged("Succeeded", "Completed", "Done.", 6.0, 6.0),
]


class Flaky(MetadataWriter):
    """Takes nothing while it is down."""

    down = False

    def _transaction(self, doing: str):  # type: ignore[no-untyped-def]
        if self.down:
            raise StoreError("down")
        return super()._transaction(doing)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'dapo.db'}"
    upgrade(url)
    return url


def told(url: str) -> tuple[object, ...]:
    reader = open_reader(url)
    run, (attempt,), (alert,) = reader.run("r"), reader.attempts("r"), reader.alerts(["r"])
    assert run is not None
    return (
        (run.name, run.namespace, run.state, run.started_at, run.ended_at, run.total_steps),
        (attempt.attempt, attempt.step_from, attempt.reason, attempt.exit_code),
        (alert.rule, alert.first_step, alert.cleared_at),
        [(event.reason, event.attempt) for event in reader.events("r")],
        [(row.step, row.state) for row in reader.checkpoints("r")],
    )


EXPECTED = (
    ("job", "team", "Succeeded", 2.0, 6.0, 9),
    (1, 0, "Completed", 0),
    ("NonFinite", 3, 5.0),
    [("Started", 1)],
    [(3, "committed")],
)


def test_a_run_from_start_to_end(url: str) -> None:
    recorder = Recorder(open_writer(url))
    recorder.add("r", *STORY)
    assert (recorder.flush(limit=2), recorder.waiting) == (None, len(STORY) - 2)
    assert (recorder.flush(), recorder.waiting) == (None, 0)
    assert told(url) == EXPECTED


def test_writing_again_changes_nothing(url: str) -> None:
    writer = open_writer(url)
    for entry in [*STORY, *STORY[:4]]:
        write(writer, "r", entry)
    write(writer, "r", STORY[-1])
    assert told(url)[0] == EXPECTED[0] and told(url)[3] == EXPECTED[3]


def test_an_outage_delays_and_keeps_the_order(url: str) -> None:
    writer = Flaky(url)
    recorder = Recorder(writer)
    writer.down = True
    recorder.add("r", *STORY[:5])
    assert str(recorder.flush()) == "down" and recorder.waiting == 5
    writer.down = False
    recorder.add("r", *STORY[5:])
    assert recorder.flush() is None
    assert told(url) == EXPECTED


def test_what_the_store_rejects_holds_nothing_up(url: str, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(open_writer(url))
    recorder.add("r", RunCreated("job", "team", {"spec": object()}, 1.0, 9), *STORY)
    assert (recorder.flush(), recorder.waiting) == (None, 0)
    assert told(url) == EXPECTED
    assert "rejected a record of r" in caplog.text


def test_the_newest_are_kept(url: str) -> None:
    recorder = Recorder(open_writer(url), kept=2)
    recorder.add("r", *STORY)
    assert recorder.waiting == 2
