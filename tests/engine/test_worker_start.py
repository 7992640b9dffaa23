"""How Ray starts a worker that has variables of its own, against what a new interpreter would do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# `sys.imported` stands for what the fork server has imported: a new interpreter does not have it.
SETUP = """
import sys
import ray._private.workers
from dapo_trainer.process.fork_child import Command, run
from dapo_trainer.verl_adapter import worker_start
worker_start.in_place()
sys.imported = True
program = ray._private.workers.__path__[0] + "/setup_worker.py"
sys.exit(run(Command("file", program, sys.argv[1:])))
"""
WORKER = """
import json, os, sys
print(json.dumps([hasattr(sys, "imported"), sys.argv, os.environ.get("RANK"), __name__]))
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("context", "stays"),
    [
        ({"env_vars": {"RANK": "3"}}, True),
        ({"env_vars": {"RANK": "3", "OMP_NUM_THREADS": "77"}}, False),
        ({"env_vars": {"RANK": "3"}, "py_executable": f"nice {sys.executable}"}, False),
        ({"env_vars": {"RANK": "3"}, "command_prefix": ["cd", "/;"]}, False),
    ],
    ids=["variables", "a variable read at the start", "another interpreter", "a command before it"],
)
def test_a_worker_with_variables_stays_a_fork(tmp_path: Path, context: dict[str, Any], stays: bool) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    arguments = ["--serialized-runtime-env-context", json.dumps(context), "--language", "PYTHON"]
    done = subprocess.run(
        [sys.executable, "-c", SETUP, *arguments, str(worker), "--node=a b"], capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == [stays, [str(worker), "--node=a b"], "3", "__main__"]
