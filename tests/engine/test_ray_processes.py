"""How a run's processes start: Ray's own without those that nobody uses, and workers that are copies of a process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import engines
import pytest
from click.testing import CliRunner
from patience import patient

from dapo_trainer.pod.node import RayNode, ray_start
from dapo_trainer.verl_adapter import environment

CLUSTER: Final = """
import json, os, psutil, ray
from dapo_trainer.verl_adapter import environment, ray_processes
os.environ.update(environment("cpu"))
with ray_processes.without_unused():
    ray.init(address="local", num_cpus=1, include_dashboard=False)
assert ray.get(ray.remote(lambda: 7).remote()) == 7
below = psutil.Process().children(recursive=True)
commands = {process.pid: " ".join(process.cmdline()) for process in below}
(raylet,) = [process for process in below if process.name() == "raylet"]
(agent,) = [process for process in below if process != raylet and "ray_agent" in commands[process.pid]]
raylet.kill()
agent.wait(30)
print(json.dumps(sorted(commands.values())))
os._exit(0)
"""


def test_what_serves_only_rays_dashboard_is_not_started() -> None:
    done = subprocess.run([sys.executable, "-c", CLUSTER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    started = done.stdout
    assert [name for name in ("dashboard.py", "agent.py", "monitor.py") if f"/dashboard/{name}" in started] == []
    assert "/autoscaler/" not in started
    assert "log_monitor.py" in started and "gcs_server" in started


WITHOUT_CLUSTER: Final = """
import os
from dapo_trainer.verl_adapter import environment
os.environ.update(environment("cpu"))
import ray
try:
    ray.put(7)
except ray.exceptions.RaySystemError as error:
    print(error)
print("started" if ray.is_initialized() else "none started")
"""


def test_a_call_without_a_cluster_starts_none() -> None:
    """Threads of a run may outlive its cluster for a moment."""
    own = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_AUTO_CONNECT"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_CLUSTER], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
    assert "has not been started" in done.stdout and done.stdout.endswith("none started\n")


# An actor's class, as verl and the data queue define theirs when they are imported.
PROGRAM = """
import sys
from contextlib import nullcontext
from dapo_trainer.verl_adapter import ray_processes
with ray_processes.none_drawn() if "in a block" in sys.argv else nullcontext():
    import ray
    @ray.remote
    class Actor: pass
assert len(Actor.__ray_metadata__.class_id.binary()) == ray.ActorClassID.size()
print(ray_processes.differ_in_copies())
"""
# All that a run imports, and what it does about its ids.
RUN = """
import shutil
import sys
from dapo_trainer.verl_adapter import preload, ray_processes
folder = preload.fork_from_here("cpu", getattr(preload, sys.argv[1]))
assert folder is not None
shutil.rmtree(folder)
print(ray_processes.differ_in_copies())
"""


@pytest.mark.parametrize(
    ("program", "arguments", "differ"),
    [
        (PROGRAM, ["in a block"], "True"),
        (PROGRAM, [], "False"),
        (RUN, ["MODULES"], "True"),
        (RUN, ["RANK_MODULES"], "True"),
        (RUN, ["ENGINE_MODULES"], "True"),
    ],
    ids=["a class in the block", "a class outside", "everything a run imports", "a rank's part", "an engine's part"],
)
def test_workers_draw_different_ids(program: str, arguments: list[str], differ: str) -> None:
    variables = {**os.environ, **environment("cpu")}
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == differ


# vLLM finds out about a model's class in a process of its own.
INSPECTED = """
import importlib, os, shutil, sys
from dapo_trainer.verl_adapter import preload
folder = preload.fork_from_here("cpu", preload.ENGINE_MODULES)
registry = importlib.import_module("vllm.model_executor.models.registry")
program, *arguments = registry._SUBPROCESS_COMMAND
assert (program, arguments) == (str(folder / "python"), ["-m", registry.__name__])
print(registry.ModelRegistry.models["Qwen2ForCausalLM"].inspect_model_cls().is_text_generation_model)
shutil.rmtree(folder)
"""


def test_an_engine_looks_at_its_model_in_a_copy(tmp_path: Path) -> None:
    variables = {**os.environ, **environment("cpu"), "VLLM_CACHE_ROOT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", INSPECTED], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


# `sys.imported` stands for what the fork server has imported: a new interpreter does not have it.
SETUP = """
import sys
import ray._private.workers
from dapo_trainer.process.fork_child import Command, run
from dapo_trainer.verl_adapter import ray_processes
ray_processes.in_place()
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


class Started(Exception):
    """Raised in place of starting Ray's daemons."""


def test_ray_accepts_the_options_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(_: object, parameters: object, **__: object) -> None:
        raise Started(parameters)

    monkeypatch.setattr(engines.load("ray._private.node").Node, "__init__", started)
    command = ray_start(RayNode("head", 0, "127.0.0.1", 4 << 30, "head"), "127.0.0.1:6379")
    assert command[:2] == ["-m", "dapo_trainer.pod.ray_command"]
    done = CliRunner().invoke(engines.load("ray.scripts.scripts").cli, command[2:])
    assert isinstance(done.exception, Started), (done.exception, done.output)


def test_the_agent_reports_no_ports_and_ends_with_its_raylet(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as raylet:
        variables = {**os.environ, "RAY_NODE_ID": "a" * 56, "RAY_RAYLET_PID": str(raylet.pid)}
        command = [sys.executable, "-m", "dapo_trainer.verl_adapter.ray_agent", str(tmp_path)]
        with subprocess.Popen(command, env=variables) as agent:
            while len(list(tmp_path.iterdir())) < 3:
                assert agent.poll() is None
                time.sleep(0.05)
            raylet.kill()
            assert agent.wait(patient(20)) == 0
    assert [file.read_text().strip() for file in tmp_path.iterdir()] == ["-1"] * 3
