"""What each role of pod does: the head becomes the driver; the others are Ray nodes until it is done or gone."""

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final, NoReturn

import psutil

from dapo_core.addresses import with_port
from dapo_core.errors import DistributedFaultError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import Role
from dapo_core.run.reasons import ExitCode
from dapo_trainer.pod.gate import GateConnection
from dapo_trainer.pod.next_attempt import NEXT_HEAD_SECONDS
from dapo_trainer.pod.node import NODE_IP, PORT, STAYED, PodEnvironment, RayNode, device, ray_start
from dapo_trainer.preflight import fetch_model
from dapo_trainer.process.fork_child import LAUNCHER
from dapo_trainer.process.liveness import SILENT_SECONDS, Heartbeats, heartbeats_of
from dapo_trainer.process.processes import environment_of
from dapo_trainer.verl_adapter import preload

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
# How often a pod tries to connect to the gate, which all of the attempt's start waits for.
GATE_SECONDS: Final = 0.2
# A rollout pod that is being terminated waits this long for its engines to have handed over.
DRAIN_SECONDS: Final = 20.0
JOIN_TRIES: Final = 10


def become_driver(node: RayNode, environment: PodEnvironment, spec: DAPOJobSpec) -> NoReturn:
    """Start Ray's head node, then become the driver: its exit code and last words are the pod's.

    Raises DistributedFaultError.
    """
    preload.fork_from_here(device(spec))
    if (code := _start_ray(node, environment)) != 0:
        raise DistributedFaultError(f"Ray's head node did not start (exit code {code}): see the pod's log.")
    environment.report_ready()
    os.environ["RAY_ADDRESS"] = with_port(node.ip, PORT)
    from dapo_trainer.main import main

    main()  # in the same process: the kubelet's SIGTERM reaches the driver, which saves a checkpoint


def _start_ray(node: RayNode, environment: PodEnvironment) -> int:
    """Start Ray's daemons on this pod; the exit code."""
    python = os.environ.get(LAUNCHER, sys.executable)
    return subprocess.run([python, *ray_start(node, environment.head_address)]).returncode


def serve(node: RayNode, environment: PodEnvironment, spec: DAPOJobSpec) -> ExitCode:
    """Be a node of the job's Ray cluster until the driver is done.

    Returns the pod's exit code: 0 when the driver is done, 143 when the pod was terminated, 30 when the driver or this
    pod's Ray was lost. Raises ModelError, StoreError and DistributedFaultError.
    """
    asked = _Asked()
    preload.fork_from_here(device(spec), _modules(node.role, spec))
    # Every rank and engine reads the model from its own pod's disk, at the same path as the driver.
    fetch_model(spec)
    line = _pass_gate(environment, asked, NEXT_HEAD_SECONDS if STAYED in os.environ else math.inf)
    if line is None:
        return ExitCode.TERMINATED
    _join(node, environment)
    if node.role == "trainer":  # a rollout pod is ready when its engine is: GroupServer reports it
        environment.report_ready()
    ranks = _Ranks(environment)
    given_up: float | None = None
    while line.end is None and _raylet_runs(node):
        ranks.look()
        if asked.is_set() and given_up is None:
            given_up = time.monotonic() + (DRAIN_SECONDS if node.role == "rollout" else math.inf)
            line.leaving(environment.pod, node.role)
        if given_up is not None and time.monotonic() > given_up:
            break
        threading.Event().wait(LOOK_SECONDS)
    if line.end == "done":
        return ExitCode.DONE
    return ExitCode.TERMINATED if asked.is_set() else ExitCode.DISTRIBUTED


def _modules(role: Role, spec: DAPOJobSpec) -> Sequence[str]:
    """What the processes of a pod import: seconds of a processor, which pods that start together share."""
    if spec.topology.mode == "Colocated":
        return preload.MODULES
    return preload.RANK_MODULES if role == "trainer" else preload.ENGINE_MODULES


class _Ranks:
    """Takes a trainer pod out of readiness as long as one of its ranks does not run: the operator decides how long an
    attempt may last like that. A pod that runs no rank stays as it is."""

    def __init__(self, environment: PodEnvironment) -> None:
        folder = heartbeats_of(os.environ)
        self._pod, self._silent = environment, list[int]()
        self._heartbeats = None if folder is None else Heartbeats(folder)
        self._due = 0.0

    def look(self, now: float | None = None) -> None:
        """Compare the heartbeats every few seconds."""
        now = time.monotonic() if now is None else now
        if self._heartbeats is None or now < self._due:
            return
        self._due = now + self._heartbeats.look_seconds
        before, self._silent = self._silent, self._heartbeats.silent(now)
        if self._silent and not before:
            processes = ", ".join(map(str, self._silent))
            log.error("No thread of these ranks' processes has run for %g s: %s", SILENT_SECONDS, processes)
            self._pod.report_silent()
        elif before and not self._silent:
            log.info("All ranks of this pod run.")
            self._pod.report_ready()


class _Asked(threading.Event):
    """Set by SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.set()


def _pass_gate(environment: PodEnvironment, asked: threading.Event, limit_seconds: float) -> GateConnection | None:
    """The connection to the driver, which may take a while to listen; None when the pod is terminated first. Raises
    DistributedFaultError when it does not listen in time."""
    last_error, until = "", time.monotonic() + limit_seconds
    while True:
        try:
            return GateConnection(environment.head_host, environment.pod)
        except OSError as error:
            if str(error) != last_error:
                last_error = str(error)
                log.info("Waiting for the driver at %s: %s", environment.head_host, error)
        if asked.wait(GATE_SECONDS):
            return None
        if time.monotonic() >= until:
            raise DistributedFaultError(f"No driver has listened at {environment.head_host} for {limit_seconds:.0f} s.")


def _join(node: RayNode, environment: PodEnvironment) -> None:
    """Become a node of the head's cluster."""
    for _ in range(JOIN_TRIES):
        if _start_ray(node, environment) == 0:
            return
        log.warning("Ray did not accept this node. Retrying.")
        threading.Event().wait(LOOK_SECONDS)
    raise DistributedFaultError(
        f"The Ray head at {environment.head_address} did not accept this node: see the pod's log."
    )


def _raylet_runs(node: RayNode) -> bool:
    """Whether this node's own daemon runs; other nodes on the same machine differ in the environment."""
    return any(
        process.info["name"] == "raylet"
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and environment_of(process).get(NODE_IP) == node.ip
        for process in psutil.process_iter(["name", "status"])
    )
