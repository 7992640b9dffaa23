"""What takes the place of a part of Ray."""

import os
import subprocess
import sys
import time
from pathlib import Path

from patience import patient


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
