"""Where a run's processes and files are: the part of the configuration that is not in the job."""

from dataclasses import dataclass
from typing import Final, Literal

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import Role

# Ray resources that a job's pods bring, so that FSDP ranks come to the trainer's pods and engines to the rollout's.
NODE_RESOURCE: Final[dict[Role, str]] = {"trainer": "dapo_trainer", "rollout": "dapo_rollout"}


def node_resources(spec: DAPOJobSpec) -> dict[str, int]:
    """How much of each of these resources the job's pods bring together."""
    layout = spec.topology.layout
    return {resource: layout.slots(role) for role, resource in NODE_RESOURCE.items() if layout.pods[role]}


Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Placement:
    """`device`: what trainer and rollout compute on; `ray_address`: a running Ray cluster, None to start one here."""

    device: Device = "cpu"
    ray_address: str | None = None


@dataclass(frozen=True)
class Paths:
    """Local paths of what the job names by URI, fetched before verl starts.

    `checkpoints`: verl writes `global_step_N` folders here; `resume_from`: one such folder, None to start afresh.
    """

    model: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    checkpoints: str
    resume_from: str | None = None
