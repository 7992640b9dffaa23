"""The processes of a local Ray cluster."""

import subprocess
import sys
from typing import Final

CLUSTER: Final = """
import json, os, psutil, ray
from dapo_trainer.verl_adapter import environment, ray_parts
os.environ.update(environment("cpu"))
with ray_parts.without_unused():
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
