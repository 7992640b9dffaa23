"""Real verl and vLLM on this machine's processors: a small model made once, and `dapo` as a user calls it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_run import DapoRun, leftovers

from dapo_trainer.demo.prepare import DONE, prepare

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples" / "arithmetic.yaml"
# Enough to write answers of the right form, about one in eight of them right: what the tests train on.
WARM_START_STEPS = 250


@pytest.fixture(scope="session")
def small_model() -> Path:
    """Model and data in the project's cache folder; made when they are not there."""
    folder = ROOT / ".dapo" / "test-model"
    if not (folder / DONE).exists():
        prepare(folder, seed=0, steps=WARM_START_STEPS)
    return folder


@pytest.fixture
def job_file(tmp_path: Path, small_model: Path) -> Callable[..., Path]:
    """The small job as a file; `fields` are dotted spec fields with `__` for dots."""

    def write(**fields: Any) -> Path:
        return _job(tmp_path, small_model, fields)

    return write


@pytest.fixture
def dapo(tmp_path: Path, job_file: Callable[..., Path]) -> Iterator[Callable[..., DapoRun]]:
    """`dapo(command, **fields)`: start it on the small job with these fields; `environment` names its stores where they
    are not those of its home folder."""
    started: list[DapoRun] = []
    home = tmp_path / "home"

    def start(
        command: str = "run", run: str | None = None, environment: Mapping[str, str] | None = None, **fields: Any
    ) -> DapoRun:
        arguments = [command, run or str(job_file(**fields))]
        output = tmp_path / f"output-{len(started)}.txt"
        with output.open("w") as sink:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "dapo"), *arguments, "--plain"],
                env={**os.environ, "DAPO_HOME": str(home), **(environment or {})},
                stdout=sink,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=tmp_path,
            )
        recorded = (environment or {}).get("DAPO_METADATA_URL", f"sqlite:///file:{home}/dapo.db?mode=ro&uri=true")
        started.append(DapoRun(home, process, output, recorded))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            each.process.send_signal(signal.SIGINT)
            each.process.wait(60)
    assert leftovers(home) == []


def _job(folder: Path, model: Path, fields: dict[str, Any]) -> Path:
    job = yaml.safe_load(JOB.read_text())
    job["metadata"]["name"] = "real"
    spec = job["spec"]
    spec["model"]["source"] = str(model / "model")
    spec["data"]["train"] = [{"source": str(model / "train.parquet")}]
    spec["data"]["validation"][0] |= {"source": str(model / "validation.parquet"), "samplesPerPrompt": 2}
    spec["batch"] |= {"prompts": 8, "responsesPerPrompt": 4, "miniBatchResponses": 16}
    spec["schedule"] |= {"steps": 4, "validateEvery": 100, "checkpointEvery": 2, "logSamplesEvery": 2}
    spec.pop("checkpoints")
    spec["runPolicy"] = {"backoffSeconds": 1, "maxRestarts": 5}
    for dotted, value in fields.items():
        *parents, leaf = dotted.split("__")
        place = spec
        for name in parents:
            place = place.setdefault(name, {})
        place[leaf] = value
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path
