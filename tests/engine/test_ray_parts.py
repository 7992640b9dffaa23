"""What takes the place of a part of Ray."""

import os
import subprocess
import sys
import time
from pathlib import Path

import engines
import pytest
from click.testing import CliRunner
from patience import patient

from dapo_trainer.pod.node import RayNode, ray_start


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
