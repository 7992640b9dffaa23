"""`make chaos`: the platform on the test cluster, a job that trains with the real engine, and `dapo chaos` on it.

All arguments are passed on to `dapo chaos`. What is there already is used: a second storm begins at once.
"""

import os
import subprocess
import sys
from pathlib import Path

from e2e_installation import JOB, RELEASE, ROOT, TEAM, Installation

# The job starts, and makes a few steps, before the first fault.
START_SECONDS = 900
FIRST_STEPS = 3


def ready(platform: Installation) -> None:
    """Install the platform and submit the job, unless it trains already; returns once it has made its first steps."""
    if RELEASE not in platform.helm("list", "--short").split():
        platform.install()
    if not any(job["metadata"]["name"] == JOB for job in platform.get("dapojobs")["items"]):
        platform.submit()
    platform.wait(
        f"{FIRST_STEPS} steps by all pods",
        lambda: platform.step() >= FIRST_STEPS and platform.status().get("pods") == "4/4",
        START_SECONDS,
    )


def main(arguments: list[str]) -> int:
    """The exit code of `dapo chaos`."""
    script = ROOT / "tests" / "kit" / "cluster.sh"
    kubeconfig = Path(subprocess.check_output([script, "kubeconfig"], text=True).strip())
    platform = Installation(kubeconfig, ROOT / ".dapo" / "e2e")
    ready(platform)
    with platform.stores() as secret:
        command = [str(Path(sys.executable).with_name("dapo")), "chaos", JOB, "--namespace", TEAM, *arguments]
        return subprocess.run(command, env={**os.environ, **secret, "KUBECONFIG": str(kubeconfig)}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
