"""The head pod: Ray's head, and in the same place the driver."""

import os
import subprocess
import sys
from typing import NoReturn

from dapo_core.errors import DistributedFaultError
from dapo_trainer.pod.node import PORT, Node, ray_start
from dapo_trainer.pod.surroundings import Surroundings


def become_driver(node: Node, around: Surroundings) -> NoReturn:
    """Start Ray's head, then go on as the driver: its exit code and last words are the pod's."""
    started = subprocess.run(ray_start(node, around.head_address))
    if started.returncode != 0:
        raise DistributedFaultError(f"Ray's head did not start (exit code {started.returncode}): see the pod's log.")
    around.tell_ready()
    os.environ["RAY_ADDRESS"] = f"{node.ip}:{PORT}"
    sys.stdout.flush()
    # The same process: the kubelet's SIGTERM reaches the driver, which saves a checkpoint.
    os.execv(sys.executable, [sys.executable, "-m", "dapo_trainer.main"])
