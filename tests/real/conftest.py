"""Real verl and vLLM on this machine's processors: a small model made once, and `dapo` as a user calls it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_run import Starter, leftovers

from dapo_trainer.demo.prepare import DONE, prepare

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples" / "arithmetic.yaml"


@pytest.fixture(scope="session")
def small_model() -> Path:
    """Model and data in the project's cache folder; made when they are not there."""
    folder = ROOT / ".dapo" / "test-model"
    if not (folder / DONE).exists():
        prepare(folder, seed=0)
    return folder


@pytest.fixture
def dapo(tmp_path: Path, small_model: Path) -> Iterator[Starter]:
    """Starts `dapo` for one test; everything is ended after it."""
    yield from _starter(tmp_path, small_model)


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[Starter]:
    """Starts `dapo` for all tests of a module, on one home folder."""
    yield from _starter(tmp_path_factory.mktemp("real"), small_model)


def _starter(folder: Path, model: Path) -> Iterator[Starter]:
    starter = Starter(folder, lambda **fields: _job(folder, model, fields))
    yield starter
    starter.close()
    assert leftovers(starter.home) == []


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
