"""Pods, FSDP ranks, engine slots and GPUs of a job. Everything that needs one of these numbers asks here."""

from collections.abc import Iterator
from dataclasses import dataclass

from dapo_core.naming import Role


def slots_of(gpus: int) -> int:
    """FSDP ranks or engine shards of one pod: one for each GPU, and one on a pod that has none."""
    return max(1, gpus)


@dataclass(frozen=True)
class Layout:
    """The numbers of spec.topology; `*_gpus` are GPUs of each pod. An attempt starts with `required_rollout_pods`.

    In Colocated mode the trainer's pods hold the engines, and what the spec says of rollout pods is not used.
    """

    separated: bool
    trainer_pods: int
    trainer_gpus: int
    rollout_pods: int
    rollout_gpus: int
    tensor_parallel: int = 1
    required_rollout_pods: int | None = None

    @property
    def pods(self) -> dict[Role, int]:
        """Pods by role; a role without pods is there with 0."""
        return {"head": 1, "trainer": self.trainer_pods, "rollout": self.rollout_pods if self.separated else 0}

    @property
    def pod_count(self) -> int:
        """Pods of one attempt."""
        return sum(self.pods.values())

    @property
    def required_pods(self) -> dict[Role, int]:
        """Pods by role that an attempt needs to start; a gang scheduler places these together."""
        rollouts, required = self.pods["rollout"], self.required_rollout_pods
        return self.pods | {"rollout": rollouts if required is None else min(rollouts, required)}

    @property
    def core_pods(self) -> int:
        """Pods whose loss ends the attempt: all but the rollouts, which come and go."""
        return self.pod_count - self.pods["rollout"]

    def members(self) -> Iterator[tuple[Role, int]]:
        """(role, index) of every pod of one attempt, the head first."""
        return ((role, index) for role, count in self.pods.items() for index in range(count))

    def gpus_per_pod(self, role: Role) -> int:
        """GPUs that each pod of a role requests; the head has none."""
        return {"head": 0, "trainer": self.trainer_gpus, "rollout": self.rollout_gpus}[role]

    def slots_per_pod(self, role: Role) -> int:
        """FSDP ranks or engine shards that each pod of a role holds; the head holds none."""
        return 0 if role == "head" else slots_of(self.gpus_per_pod(role))

    def slots(self, role: Role) -> int:
        """FSDP ranks or engine shards of all pods of a role."""
        return self.pods[role] * self.slots_per_pod(role)

    @property
    def fsdp_ranks(self) -> int:
        """FSDP ranks of the job."""
        return self.slots("trainer")

    @property
    def engines(self) -> int:
        """vLLM engines of the job, on their own pods or on the trainer's."""
        return self.slots("rollout" if self.separated else "trainer") // self.tensor_parallel

    @property
    def gpus(self) -> int:
        """GPUs of all pods."""
        return sum(count * self.gpus_per_pod(role) for role, count in self.pods.items())
