"""A pod as a node of its job's Ray cluster: its environment, its resources, how Ray is started there, and its check.

A pod of a GPU job checks its node before it fetches anything: minutes of download are lost otherwise.
"""

import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dapo_core.addresses import host_of, resolved
from dapo_core.errors import DistributedFaultError, NodeUnfitError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec
from dapo_core.naming import Role, child_name
from dapo_trainer.doctor.bandwidth import BETWEEN, Group
from dapo_trainer.doctor.check import Check, failures
from dapo_trainer.doctor.examination import Machine, examine, host
from dapo_trainer.verl_config.placement import NODE_RESOURCE, POD_LABEL, Device, pod_label

PORT: Final = 6379
NODE_IP: Final = "DAPO_NODE_IP"  # in the environment of all of a pod's processes
POD_NAME: Final = "DAPO_POD_NAME"  # a host name is shorter where this is longer than 63 letters
READY_FILE: Final = "DAPO_READY_FILE"
# Set where trainers of the attempt were there before it: in those, and by the operator in pods that join them.
STAYED: Final = "DAPO_TRAINERS_STAYED"
SHARED_MEMORY: Final = "/dev/shm"
# A node whose head is gone ends itself after this long; Ray's default of a minute only delays the next attempt.
LOST_AFTER_SECONDS: Final = 20
# Half of /dev/shm for Ray's objects: weights on their way to an engine of the same pod take shared memory as well.
OBJECT_STORE_SHARE: Final = 0.5
MIN_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
# Logical: verl asks for three per rank and the data queue for more; with fewer, actors would wait for each other.
LOGICAL_CPUS: Final = 32
LOGICAL_CPUS_PER_SLOT: Final = 4

# Ray's dashboard and its autoscaler. Its server for drivers outside the cluster cannot be left out.
_UNUSED: Final = ("--include-dashboard=false", "--no-monitor")

_RAY: Final = ("-m", "dapo_trainer.pod.ray_command", "start")


def ready_file(environment: Mapping[str, str]) -> Path:
    """The file that the readiness probe looks for."""
    return Path(environment.get(READY_FILE, "/var/lib/dapo/ready"))


@dataclass(frozen=True)
class PodEnvironment:
    """The environment of a pod (docs/architecture.md). The readiness probe checks that the file `ready` exists."""

    job_file: Path
    head_address: str
    ready: Path
    pod: str
    ip: str
    shm_bytes: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "PodEnvironment":
        """As started. Raises KeyError for a variable that is missing, OSError without a name or shared memory."""
        name = socket.gethostname()
        facts = os.statvfs(SHARED_MEMORY)
        return cls(
            job_file=Path(environment["DAPO_JOB"]),
            head_address=environment["DAPO_HEAD_ADDRESS"],
            ready=ready_file(environment),
            pod=environment.get(POD_NAME) or name,
            # A pod's own name is in its hosts file; Ray would look for a route to the internet instead.
            ip=environment.get("DAPO_POD_IP") or resolved(name),
            shm_bytes=facts.f_bavail * facts.f_frsize,
        )

    @property
    def head_host(self) -> str:
        """Name or address of the head pod."""
        return host_of(self.head_address)

    def report_ready(self) -> None:
        """Create the file that the readiness probe looks for."""
        self.ready.parent.mkdir(parents=True, exist_ok=True)
        self.ready.touch()

    def report_silent(self) -> None:
        """Remove that file: a rank of this pod does not run. The operator ends an attempt whose pod stays like that."""
        self.ready.unlink(missing_ok=True)


@dataclass(frozen=True)
class RayNode:
    """`slots`: FSDP ranks or vLLM shards it holds, as Ray counts GPUs; `ip`: its address in the cluster."""

    role: Role
    slots: int
    ip: str
    shm_bytes: int
    pod: str


def device(spec: DAPOJobSpec) -> Device:
    """The device the job computes on. The head has no GPU, so it cannot detect it."""
    return "cuda" if spec.topology.trainer.gpus_per_pod else "cpu"


def ray_start(node: RayNode, head_address: str) -> list[str]:
    """Python's arguments that make this pod a node of the cluster at `head_address` (host:port). Pure."""
    place = ["--head", f"--port={PORT}", *_UNUSED]
    if node.role != "head":
        place = [
            f"--address={head_address}",
            f"--resources={_resources(node)}",
            f"--labels={POD_LABEL}={pod_label(node.pod)}",
        ]
    cpus = max(LOGICAL_CPUS, LOGICAL_CPUS_PER_SLOT * node.slots)
    place += [f"--num-cpus={cpus}"]
    return [*_RAY, *place, f"--node-ip-address={node.ip}", f"--num-gpus={node.slots}", _object_store(node)]


def _resources(node: RayNode) -> str:
    return json.dumps({NODE_RESOURCE[node.role]: node.slots})


def _object_store(node: RayNode) -> str:
    return f"--object-store-memory={max(MIN_OBJECT_STORE_BYTES, int(node.shm_bytes * OBJECT_STORE_SHARE))}"


log = logging.getLogger(__name__)

NODE_NAME: Final = "DAPO_NODE_NAME"
# At which the first trainer pod lets the others meet it; Ray's own ports begin at 6379 and 10001.
CHECK_PORT: Final = 29511
# Pods of a gang start together, but one may still pull its image: then bandwidth is not measured, which is a warning.
MEET_SECONDS: Final = 120.0
Examine = Callable[[Machine], Iterable[Check]]


def machine(job: DAPOJob, role: Role, environment: Mapping[str, str]) -> Machine:
    """What a pod needs of its node. Stores and the head's address are not part of it: others wait for them."""
    layout = job.spec.topology.layout
    gpus, peers = layout.gpus_per_pod(role), None
    # Trainers that stayed from an earlier attempt have measured, and are not asked again.
    if role == "trainer" and layout.pods["trainer"] > 1 and STAYED not in environment:
        name = child_name(job.metadata.name, "trainer", int(environment["DAPO_ATTEMPT"]), 0)
        domain = environment["DAPO_HEAD_ADDRESS"].rpartition(":")[0].partition(".")[2]
        first = f"{name}.{domain}" if domain else name
        index = int(environment["DAPO_INDEX"])
        peers = Group("cuda", gpus, layout.pods["trainer"], index, first, CHECK_PORT, MEET_SECONDS)
    return Machine("cuda", gpus, Path(environment["DAPO_WORK_DIR"]), peers=peers)


def check_node(job: DAPOJob, role: Role, environment: Mapping[str, str], examine: Examine = examine) -> None:
    """Log every check. Unless the job only warns, raises NodeUnfitError, which names the node and what it lacks; or
    DistributedFaultError when nothing but the sum with other nodes fails, as that can be any node's fault: the next
    attempt must not avoid all of them."""
    mode = job.spec.run_policy.preflight
    if mode == "Skip" or not job.spec.topology.trainer.gpus_per_pod:
        return
    checks = []
    for check in examine(machine(job, role, environment)):
        log.info("%s: %s", check.verdict, check.sentence)
        checks.append(check)
    unfit = failures(checks)
    if not unfit or mode != "Require":
        return
    node = environment.get(NODE_NAME) or host()
    if all(check.name == BETWEEN for check in unfit):
        # Without the error itself: the operator would take what is said of a device for a fault of this node.
        raise DistributedFaultError(
            f"The preflight's {BETWEEN} failed on node {node}, and any of the nodes may be the cause: see this pod's "
            "log, and docs/install.md on hangs."
        )
    raise NodeUnfitError(f"Node {node} is unfit: " + "; ".join(check.sentence for check in unfit) + ".")
