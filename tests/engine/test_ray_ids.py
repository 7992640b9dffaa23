"""Ids drawn by copies of a process that has imported what a run needs."""

import os
import subprocess
import sys

import pytest

from dapo_trainer.verl_adapter import environment

# An actor's class, as verl and the data queue define theirs when they are imported.
PROGRAM = """
import sys
from contextlib import nullcontext
from dapo_trainer.verl_adapter import ray_ids
with ray_ids.none_drawn() if "in a block" in sys.argv else nullcontext():
    import ray
    @ray.remote
    class Actor: pass
assert len(Actor.__ray_metadata__.class_id.binary()) == ray.ActorClassID.size()
print(ray_ids.differ_in_copies())
"""
# All that a run imports, and what it does about its ids.
RUN = """
import shutil
from dapo_trainer.verl_adapter import preload, ray_ids
folder = preload.fork_from_here("cpu")
assert folder is not None
shutil.rmtree(folder)
print(ray_ids.differ_in_copies())
"""


@pytest.mark.parametrize(
    ("program", "arguments", "differ"),
    [(PROGRAM, ["in a block"], "True"), (PROGRAM, [], "False"), (RUN, [], "True")],
    ids=["a class in the block", "a class outside", "everything a run imports"],
)
def test_workers_draw_different_ids(program: str, arguments: list[str], differ: str) -> None:
    variables = {**os.environ, **environment("cpu")}
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == differ
