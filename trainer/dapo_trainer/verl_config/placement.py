"""Where a run's processes and files are: the part of the configuration that is not in the job."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import Role

# Ray resources of a job's pods, by which FSDP ranks are placed on the trainer's pods and engines on the rollout's.
NODE_RESOURCE: Final[dict[Role, str]] = {"trainer": "dapo_trainer", "rollout": "dapo_rollout"}

# Ray's label of a pod that is a node: its name, by which the driver knows which engines leave with it.
POD_LABEL: Final = "dapo-pod"


def node_resources(spec: DAPOJobSpec) -> dict[str, int]:
    """The amount of each of these resources that the first step waits for: of all trainer pods, and of the rollout pods
    that the job requires, but at least one."""
    layout = spec.topology.layout
    return {
        resource: max(1, layout.required_pods[role]) * layout.slots_per_pod(role)
        for role, resource in NODE_RESOURCE.items()
        if layout.pods[role]
    }


def pod_label(pod: str) -> str:
    """The label's value: of a longer name the end, which tells pods of a job apart."""
    return pod[-63:].lstrip("-.")


Device = Literal["cpu", "cuda"]


def detect_device() -> Device:
    """`DAPO_DEVICE` (cpu or cuda), else cuda if there is an NVIDIA device node, else cpu; without importing torch.

    A container that was given one GPU of several has that one's node only, for example /dev/nvidia3.

    Raises SpecError for another value of `DAPO_DEVICE`.
    """
    requested = os.environ.get("DAPO_DEVICE")
    if requested is None:
        return "cuda" if any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"
    if requested not in ("cpu", "cuda"):
        raise SpecError([Problem("DAPO_DEVICE", f"DAPO_DEVICE is {requested!r}: set it to cpu or cuda.")])
    return "cuda" if requested == "cuda" else "cpu"


@dataclass(frozen=True)
class Placement:
    """`device`: what trainer and rollout compute on; `ray_address`: a running Ray cluster, None to start one here."""

    device: Device = "cpu"
    ray_address: str | None = None


@dataclass(frozen=True)
class Paths:
    """Local paths of what the job names by URI, fetched before verl starts.

    `checkpoints`: verl writes `global_step_N` folders here.
    `largest_tensor_bytes`: of the model's tensors in float32; 0 where it does not matter or is not known.
    """

    model: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    checkpoints: str
    largest_tensor_bytes: int = 0
