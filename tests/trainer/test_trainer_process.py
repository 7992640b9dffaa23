"""What a trainer process says of itself: its heartbeat, its news and how it ends."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dapo_core.run.last_words import LastWords, ending
from dapo_core.run.reasons import ExitCode
from dapo_trainer.checkpoints.checkpoint_store import LocalCheckpoint
from dapo_trainer.main import StopRequested
from dapo_trainer.process.trainer_process import StoreUrls, TrainerEnvironment
from dapo_trainer.run_report import RunReport


def test_a_stop_before_the_first_step_ends_with_143() -> None:
    assert ending(StopRequested()) == (ExitCode.TERMINATED, LastWords("Terminated", "Stopped on request."))


def test_places_come_from_the_environment() -> None:
    environment = {
        "DAPO_JOB": "/j.json",
        "DAPO_RUN_ID": "r",
        "DAPO_ATTEMPT": "3",
        "DAPO_METADATA_URL": "sqlite:///x",
        "DAPO_STORE_URL": "file:///s",
        "DAPO_WORK_DIR": "/w",
    }
    stores = StoreUrls("sqlite:///x", "file:///s")
    assert TrainerEnvironment.of(environment) == TrainerEnvironment(Path("/j.json"), "r", 3, stores, Path("/w"))


class Calls:
    """Stands for any of a report's stores: keeps what it was called with."""

    attempt = 2

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.made.append((name, args, kwargs))


def report(heartbeat: Path) -> tuple[RunReport, SimpleNamespace]:
    stores = SimpleNamespace(spool=Calls(), samples=Calls(), uploads=Calls())
    made: Any = stores
    return RunReport(heartbeat, made.spool, made.samples, made.uploads, "sha"), stores


def test_a_heartbeat_is_whole_at_any_time(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat.json"
    made, _ = report(file)
    for step in range(20):
        made.phase("update", step, 20, "mini-batch 2 of 4")
        beat = json.loads(file.read_text())
        assert (beat["phase"], beat["step"], beat["totalSteps"], beat["detail"]) == (
            "update", step, 20, "mini-batch 2 of 4"
        )  # fmt: skip
        assert beat["ts"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]


def test_a_heartbeat_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, _ = report(tmp_path / "gone" / "heartbeat.json")
    made.phase("update", 1, 2)
    assert "The heartbeat cannot be written" in caplog.text


def test_news_go_where_they_belong(tmp_path: Path) -> None:
    made, stores = report(tmp_path / "h.json")
    made.step(3, {"a": 1.0})
    made.event("Warning", "Starved", "no groups", 3)
    made.samples(3, [])
    made.checkpoint(3, tmp_path, {"a": 1.0})
    assert stores.spool.made == [
        ("step", (3, {"a": 1.0, "dapo/store_lag_seconds": 0.0}), {}),
        ("event", ("Starved", "no groups"), {"type": "Warning", "step": 3}),
    ]
    assert stores.samples.made == [("write", (3, []), {})]
    assert stores.uploads.made == [
        ("upload", (LocalCheckpoint(3, tmp_path, attempt=2, spec_digest="sha", metrics={"a": 1.0}),), {})
    ]
