"""`dapo run` and `dapo resume` as typed: what they refuse, and that they refuse it before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from builders import MINIMAL
from patience import patient

DAPO = Path(sys.executable).with_name("dapo")


def dapo(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(DAPO), *words], cwd=folder, capture_output=True, text=True, timeout=patient(60), check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["run", "none.yaml"], "none.yaml cannot be read", id="no file"),
        pytest.param(["run", "job.yaml", "--set", "schedule.stepz=3"], "did you mean steps?", id="unknown field"),
        pytest.param(["run", "job.yaml", "--set", "schedule.steps"], "write a dotted field", id="no value"),
        pytest.param(["run", "job.yaml", "--name", "Not A Name"], "metadata.name", id="name"),
        pytest.param(["run", "job.yaml", "--set", "model.source=./none"], "spec.model.source", id="no model"),
        pytest.param(["resume", "none"], "There is no run none", id="no run"),
    ],
)
def test_mistakes_are_told_before_anything_starts(tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(MINIMAL))
    code, out = dapo(tmp_path, *words)
    assert code == 2, out
    assert says in out
    assert "Traceback" not in out
    assert [entry.name for entry in tmp_path.iterdir()] == ["job.yaml"]


def test_the_supervisor_needs_no_engine() -> None:
    code = (
        "import sys, dapo_trainer.local.command, dapo_trainer.local.run_session, dapo_trainer.preflight\n"
        "print([name for name in ('torch', 'ray', 'verl', 'vllm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
