"""What a trainer process says of itself: its heartbeat, its news and how it ends."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dapo_core.errors import CheckpointError, DataError, ModelError, Problem, RunBusyError, SpecError, StoreError
from dapo_core.run.exit_codes import ExitCode
from dapo_trainer.main import Places, StopRequested, ending
from dapo_trainer.report import RunReport
from dapo_trainer.verl_adapter.session import SamplingExhausted, Stopped


class RayActorError(Exception):
    """As Ray's own, whose module is what is looked at."""


RayActorError.__module__ = "ray.exceptions"


@pytest.mark.parametrize(
    ("error", "code", "reason", "message"),
    [
        pytest.param(SpecError([Problem("a", "a is 1.")]), ExitCode.SPEC, "Spec", "a is 1.", id="spec"),
        pytest.param(DataError("row 3"), ExitCode.DATA, "Data", "row 3", id="data"),
        pytest.param(ModelError("torn"), ExitCode.MODEL, "Model", "torn", id="model"),
        pytest.param(StoreError("down"), ExitCode.STORES, "Store", "down", id="stores"),
        pytest.param(CheckpointError("torn"), ExitCode.STORES, "Checkpoint", "torn", id="checkpoint"),
        pytest.param(RunBusyError("held"), 1, "RunBusy", "held", id="another mistake"),
        pytest.param(Stopped(), ExitCode.TERMINATED, "Stopped", "Stopped as asked.", id="stopped between steps"),
        pytest.param(StopRequested(), ExitCode.TERMINATED, "Stopped", "Stopped as asked.", id="stopped at the start"),
        pytest.param(
            SamplingExhausted("only 2 of 4"),
            ExitCode.SAMPLING_EXHAUSTED,
            "SamplingExhausted",
            "only 2 of 4",
            id="sampling exhausted",
        ),
        pytest.param(
            RayActorError("Traceback:\n  File x\n\nOSError: the actor died\n"),
            ExitCode.DISTRIBUTED,
            "DistributedFault",
            "OSError: the actor died",
            id="a Ray fault, by its last line",
        ),
        pytest.param(ValueError("x\ny"), 1, "ValueError", "y", id="a bug"),
        pytest.param(KeyError(), 1, "KeyError", "KeyError", id="a bug without words"),
    ],
)
def test_how_a_training_ends(error: BaseException, code: int, reason: str, message: str) -> None:
    assert ending(error) == (code, reason, message)


def test_places_come_from_the_environment() -> None:
    environment = {
        "DAPO_JOB": "/j.json",
        "DAPO_RUN_ID": "r",
        "DAPO_ATTEMPT": "3",
        "DAPO_METADATA_URL": "sqlite:///x",
        "DAPO_STORE_URL": "file:///s",
        "DAPO_WORK_DIR": "/w",
    }
    assert Places.of(environment) == Places(Path("/j.json"), "r", 3, "sqlite:///x", "file:///s", Path("/w"))


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
        ("upload", (3, tmp_path), {"attempt": 2, "spec_digest": "sha", "metrics": {"a": 1.0}})
    ]
