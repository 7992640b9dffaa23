"""A trainer or rollout pod: a node of Ray until its head is gone, or until the pod has to go."""

import logging
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Final

from dapo_core.errors import DistributedFaultError
from dapo_core.exit_codes import ExitCode
from dapo_core.spec import DAPOJobSpec
from dapo_trainer.data.sources import model_folder
from dapo_trainer.local import proctable
from dapo_trainer.pod.node import NODE_IP, Node, ray_start
from dapo_trainer.pod.surroundings import Surroundings, reachable

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
JOIN_TRIES: Final = 10
DRAIN_SECONDS: Final = 30.0


def serve(node: Node, around: Surroundings, spec: DAPOJobSpec) -> int:
    """Until Ray on this node has ended: 143 when the pod was asked to go, 30 otherwise. Raises ModelError, ..."""
    asked = _Asked()
    # Every rank and engine reads the model from its own pod's disk, under the path that the driver has it.
    model_folder(spec.model.source, spec.model.revision)
    if not _join(node, around, asked):
        return ExitCode.TERMINATED
    if node.role == "trainer":  # a rollout pod is ready when its engine is: GroupServer tells
        around.tell_ready()
    told = False
    while _raylet_runs(node):
        if asked.is_set() and not told:
            told = True
            tell_driver(around.pod)
        threading.Event().wait(LOOK_SECONDS)
    return ExitCode.TERMINATED if asked.is_set() else ExitCode.DISTRIBUTED


class _Asked(threading.Event):
    """Set by SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.set()


def _join(node: Node, around: Surroundings, asked: threading.Event) -> bool:
    """Become a node of the head's cluster, which may not be there yet; False when asked to go instead."""
    for _ in range(JOIN_TRIES):
        while not reachable(around.head_address):
            if asked.wait(LOOK_SECONDS):
                return False
        if subprocess.run(ray_start(node, around.head_address)).returncode == 0:
            return True
        log.warning("Ray did not take this node; trying again.")
        if asked.wait(LOOK_SECONDS):
            return False
    raise DistributedFaultError(f"The Ray head at {around.head_address} did not take this node: see the pod's log.")


def _raylet_runs(node: Node) -> bool:
    """Whether the daemon of this very node runs; the environment tells it from another's on the same machine."""
    mine = f"{NODE_IP}={node.ip}".encode()
    rows = (row for row in proctable.table().values() if row.name == "raylet" and row.state != "Z")
    return any(mine in proctable.environment(row.pid) for row in rows)


def tell_driver(pod: str) -> None:
    """Ask the driver for a checkpoint and a clean stop: this pod has to go (a drained node, an eviction).

    In a process of its own, which the head may have left without an answer.
    """
    command = [sys.executable, "-m", "dapo_trainer.pod.drain", pod]
    try:
        subprocess.run(command, timeout=DRAIN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        log.warning("The driver could not be told that this pod has to go.")
