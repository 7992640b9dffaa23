"""A store that cannot be used is reported when a run starts (`dapo run`, the trainer), never at a checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import dumped, job
from patience import patient
from rich.console import Console
from servers.minio import MinioServer

from dapo_core.errors import StoreError
from dapo_core.run.home import Home
from dapo_core.run.reasons import ExitCode
from dapo_trainer.local.run_session import Show, work_on
from dapo_trainer.process.run_folder import RunFolder


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        pytest.param("s3://no-such-bucket/runs", "the bucket no-such-bucket does not exist", id="no bucket"),
        pytest.param("file:///proc/none", "cannot be written to /proc/none", id="a folder that is none"),
        pytest.param("pvc://claim/folder", "is not supported; use s3://bucket/prefix or file:///folder", id="kind"),
    ],
)
def test_dapo_run_starts_nothing(
    url: str, sentence: str, minio: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (minio.environment | {"DAPO_S3_ENDPOINT": minio.endpoint}).items():
        monkeypatch.setenv(name, value)
    home = Home(tmp_path)
    with pytest.raises(StoreError, match=sentence):
        work_on(
            home, RunFolder(tmp_path / "r"), job(checkpoints={"uri": url}), Show(Console(quiet=True)), command=["false"]
        )
    assert list(tmp_path.iterdir()) == []


def test_dapo_run_keeps_objects_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Home(tmp_path).store_url == (tmp_path / "store").as_uri()
    monkeypatch.setenv("DAPO_STORE_URL", "s3://bucket/runs")
    assert Home(tmp_path).store_url == "s3://bucket/runs"


def test_a_trainer_ends_with_31(minio: MinioServer, tmp_path: Path) -> None:
    """A whole trainer process: without its store it must not begin at step 0."""
    work = tmp_path / "attempt-1"
    work.mkdir()
    (tmp_path / "job.json").write_text(json.dumps(dumped(job())))
    environment = os.environ | minio.environment
    environment |= {
        "DAPO_JOB": str(tmp_path / "job.json"),
        "DAPO_RUN_ID": "r",
        "DAPO_ATTEMPT": "1",
        "DAPO_METADATA_URL": f"sqlite:///{tmp_path / 'dapo.db'}",
        "DAPO_STORE_URL": minio.url("no-such-bucket"),
        "DAPO_WORK_DIR": str(work),
        "DAPO_TERMINATION_LOG": str(tmp_path / "words"),
        "DAPO_FORK_WORKERS": "0",  # it ends before it needs what would be imported
    }
    ended = subprocess.run(
        [sys.executable, "-m", "dapo_trainer.main"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    assert ended.returncode == ExitCode.STORES, ended.stderr
    words = json.loads((tmp_path / "words").read_text())
    assert words["reason"] == "StoresUnreachable" and "the bucket no-such-bucket does not exist" in words["message"]
