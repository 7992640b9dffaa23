"""A pod as a node of its job's Ray cluster: its resources and how Ray is started there. Pure."""

import json
import sys
from dataclasses import dataclass
from typing import Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import Role
from dapo_trainer.verl_config.placement import NODE_RESOURCE, Device

PORT: Final = 6379
NODE_IP: Final = "DAPO_NODE_IP"  # in the environment of all of a pod's processes
# A node whose head is gone ends itself after this long; Ray's own minute only delays the next attempt.
LOST_AFTER_SECONDS: Final = 20
# Half of /dev/shm for Ray's objects: weights on their way to an engine of the same pod take shared memory as well.
OBJECT_STORE_SHARE: Final = 0.5
MIN_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
# Logical: verl asks for three a rank and the data queue for more; Ray would refuse actors that wait on each other.
LOGICAL_CPUS: Final = 32

_RAY: Final = (sys.executable, "-m", "ray.scripts.scripts", "start", f"--num-cpus={LOGICAL_CPUS}")


@dataclass(frozen=True)
class Node:
    """`slots`: FSDP ranks or vLLM shards it holds, as Ray counts GPUs; `ip`: its address in the cluster."""

    role: Role
    slots: int
    ip: str
    shm_bytes: int


def device(spec: DAPOJobSpec) -> Device:
    """What the job computes on. The head has no GPU, so it can not look for itself."""
    return "cuda" if spec.topology.trainer.gpus_per_pod else "cpu"


def ray_start(node: Node, head_address: str) -> list[str]:
    """The command that makes this pod a node of the cluster at `head_address` (host:port)."""
    place = ["--head", f"--port={PORT}", "--include-dashboard=false"]
    if node.role != "head":
        place = [f"--address={head_address}", f"--resources={_resources(node)}"]
    return [*_RAY, *place, f"--node-ip-address={node.ip}", f"--num-gpus={node.slots}", _object_store(node)]


def _resources(node: Node) -> str:
    return json.dumps({NODE_RESOURCE[node.role]: node.slots})


def _object_store(node: Node) -> str:
    return f"--object-store-memory={max(MIN_OBJECT_STORE_BYTES, int(node.shm_bytes * OBJECT_STORE_SHARE))}"
