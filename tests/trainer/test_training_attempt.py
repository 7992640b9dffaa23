"""A trainer's stores around an attempt: what one leaves in the object store, the next one delivers (B6) or resumes."""

import shutil
from pathlib import Path

import pytest
from checkpoint_folders import local
from patience import patient

from dapo_core.db import open_reader, upgrade
from dapo_core.jobspec import load_job
from dapo_core.objectstore import open_store
from dapo_trainer import main
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.main import TrainingAttempt
from dapo_trainer.process.trainer_process import StoreUrls, TrainerEnvironment
from dapo_trainer.verl_adapter.session import Session

JOB = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
RUN = "arith-20261121-0412-x7k2"


def attempt(number: int, folder: Path, database: str) -> TrainingAttempt:
    stores = StoreUrls(database, (folder / "store").as_uri())
    environment = TrainerEnvironment(JOB, RUN, number, stores, folder / f"pod-{number}" / f"attempt-{number}")
    return TrainingAttempt(environment, load_job(JOB))


def stored(folder: Path) -> list[str]:
    return [info.key for info in open_store((folder / "store").as_uri()).list(f"{RUN}/spool/")]


def test_a_pod_that_ends_without_a_database_loses_no_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "FLUSH_SECONDS", 0.2)
    database = f"sqlite:///{tmp_path / 'database' / 'dapo.db'}"
    first = attempt(1, tmp_path, database)
    for step in range(1, 6):
        first.report.step(step, {"loss": step / 2})
    assert not first.close(done=False), "there is no database"
    assert len(stored(tmp_path)) == 1
    shutil.rmtree(tmp_path / "pod-1")

    (tmp_path / "database").mkdir(exist_ok=True)
    upgrade(database)
    monkeypatch.setattr(main, "FLUSH_SECONDS", patient(30.0))
    second = attempt(2, tmp_path, database)
    second._deliver_earlier()
    second.report.step(6, {"loss": 3.0})
    assert second.close(done=False) and stored(tmp_path) == []
    points = open_reader(database).curve(RUN, "loss")
    assert [(point.step, point.attempt) for point in points] == [(step, 1) for step in range(1, 6)] + [(6, 2)]


def test_objects_that_cannot_be_fetched_do_not_stop_an_attempt(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'dapo.db'}"
    upgrade(database)
    started = attempt(1, tmp_path, database)
    (tmp_path / "store").write_bytes(b"no folder")
    (started.environment.work / "earlier-spools").parent.mkdir(parents=True, exist_ok=True)
    started._deliver_earlier()
    started.report.step(1, {"loss": 1.0})
    started._record(started._secure_metrics)
    assert started._sender.close(patient(30.0)) and started._spool.close()


@pytest.mark.parametrize("step", [None, 5])
def test_training_goes_on_from_the_step_whose_files_have_arrived(step: int | None, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'dapo.db'}"
    upgrade(database)
    if step is not None:
        checkpoint = LocalCheckpoint(step, local(tmp_path, step), 1, load_job(JOB).spec.digest())
        CheckpointStore(open_store((tmp_path / "store").as_uri()), RUN).commit(checkpoint)
    second = attempt(2, tmp_path, database)
    second._restore.begin()
    second._session = session = Session(second.report, {})
    resumed = second._resume(lambda _folder: False)
    folder = None if resumed is None else resumed.folder
    assert folder == (None if step is None else second.environment.work / f"global_step_{step}")
    assert folder is None or (folder / "data.pt").read_bytes() == b"position 5"
    assert session.last_recorded == session.last_saved == (step or 0)
    second.report.step(6, {"loss": 1.0})
    assert second.close(done=False)
    steps = [event.step for event in open_reader(database).events(RUN) if event.reason == "Resumed"]
    assert steps == ([] if step is None else [step])
