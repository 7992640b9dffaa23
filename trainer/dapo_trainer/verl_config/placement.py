"""Where a run's processes and files are: the part of the configuration that is not in the job."""

from dataclasses import dataclass
from typing import Final, Literal

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import Role

# Ray resources that a job's pods bring, so that FSDP ranks come to the trainer's pods and engines to the rollout's.
NODE_RESOURCE: Final[dict[Role, str]] = {"trainer": "dapo_trainer", "rollout": "dapo_rollout"}


def pod_slots(spec: DAPOJobSpec, role: Role) -> int:
    """FSDP ranks or vLLM shards of one pod: one a GPU; one on a pod of processors; none on the head."""
    if role == "head":
        return 0
    group = spec.topology.trainer if role == "trainer" else spec.topology.rollout
    return max(1, group.gpus_per_pod)


def node_resources(spec: DAPOJobSpec) -> dict[str, int]:
    """How much of each of these resources the job's pods bring together."""
    topology = spec.topology
    resources = {NODE_RESOURCE["trainer"]: topology.trainer.replicas * pod_slots(spec, "trainer")}
    if topology.mode == "Separated":
        resources[NODE_RESOURCE["rollout"]] = topology.rollout.replicas * pod_slots(spec, "rollout")
    return resources


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
