"""A trainer or rollout pod: a node of Ray until the driver is done or gone, or until the pod has to go."""

import logging
import signal
import subprocess
import threading
from types import FrameType
from typing import Final

from dapo_core.errors import DistributedFaultError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.reasons import ExitCode
from dapo_trainer.data.sources import model_folder
from dapo_trainer.pod.gate import Line
from dapo_trainer.pod.node import NODE_IP, Node, ray_start
from dapo_trainer.pod.surroundings import Surroundings
from dapo_trainer.process import table

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
JOIN_TRIES: Final = 10


def serve(node: Node, around: Surroundings, spec: DAPOJobSpec) -> ExitCode:
    """The pod's exit code: 0 when the driver is done, 143 when the pod was asked to go, 30 when either was lost.

    Raises ModelError and what else bringing the model here may raise.
    """
    asked = _Asked()
    # Every rank and engine reads the model from its own pod's disk, under the path that the driver has it.
    model_folder(spec.model.source, spec.model.revision)
    line = _pass_gate(around, asked)
    if line is None:
        return ExitCode.TERMINATED
    _join(node, around)
    if node.role == "trainer":  # a rollout pod is ready when its engine is: GroupServer tells
        around.tell_ready()
    told = False
    while line.end is None and _raylet_runs(node):
        if asked.is_set() and not told:
            told = True
            line.leaving(around.pod)
        threading.Event().wait(LOOK_SECONDS)
    if line.end == "done":
        return ExitCode.DONE
    return ExitCode.TERMINATED if asked.is_set() else ExitCode.DISTRIBUTED


class _Asked(threading.Event):
    """Set by SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.set()


def _pass_gate(around: Surroundings, asked: threading.Event) -> Line | None:
    """The line to the driver, which may take its time to open; None when asked to go instead."""
    said = ""
    while True:
        try:
            return Line(around.head_host)
        except OSError as error:
            if str(error) != said:
                said = str(error)
                log.info("Waiting for the driver at %s: %s", around.head_host, error)
        if asked.wait(LOOK_SECONDS):
            return None


def _join(node: Node, around: Surroundings) -> None:
    """Become a node of the head's cluster."""
    for _ in range(JOIN_TRIES):
        if subprocess.run(ray_start(node, around.head_address)).returncode == 0:
            return
        log.warning("Ray did not take this node; trying again.")
        threading.Event().wait(LOOK_SECONDS)
    raise DistributedFaultError(f"The Ray head at {around.head_address} did not take this node: see the pod's log.")


def _raylet_runs(node: Node) -> bool:
    """Whether the daemon of this very node runs; the environment tells it from another's on the same machine."""
    mine = f"{NODE_IP}={node.ip}".encode()
    rows = (row for row in table.table().values() if row.name == "raylet" and row.state != "Z")
    return any(mine in table.environment(row.pid) for row in rows)
