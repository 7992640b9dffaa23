"""Which pods a job has, and how FSDP ranks and vLLM replicas lie on them."""

from typing import Literal

from pydantic import Field

from dapo_core.jobspec.base import FreeObject, Quantity, SpecModel
from dapo_core.jobspec.layout import Layout


class Resources(SpecModel):
    """What each pod of a role asks for, besides its GPUs."""

    cpu: Quantity = Field(default="8", description='Processor cores, requested: 4 or "500m".')
    memory: Quantity = Field(default="64Gi", description='Main memory, requested and the limit: "64Gi".')
    shm: Quantity = Field(
        default="16Gi",
        description="Size of /dev/shm, part of memory. Ray's object store and NCCL lie there; the 64 MiB that a "
        "container has by default end in a bus error.",
    )


class HeadResources(Resources):
    """What the head pod asks for: it holds the batch in memory, so long responses need more."""

    cpu: Quantity = Field(default="4", description='Processor cores, requested: 4 or "500m".')
    memory: Quantity = Field(default="16Gi", description='Main memory, requested and the limit: "16Gi".')
    shm: Quantity = Field(default="4Gi", description="Size of /dev/shm, part of memory, for Ray's object store.")


class Head(SpecModel):
    """The pod with Ray's head and the driver. It holds no GPU."""

    resources: HeadResources = Field(default=HeadResources(), description="Resources of the head pod.")
    pod_template: FreeObject = Field(
        default={}, description="A PodTemplateSpec merged over what the operator builds: image, node selector, ..."
    )


class Trainer(SpecModel):
    """The pods with FSDP workers: replicas x gpusPerPod ranks."""

    replicas: int = Field(default=1, ge=1, le=1000, description="Trainer pods.")
    gpus_per_pod: int = Field(
        default=1,
        ge=0,
        le=64,
        description="GPUs of each pod, one FSDP rank each. 0 is a pod on processors with one rank.",
    )
    resources: Resources = Field(default=Resources(), description="Resources of each trainer pod.")
    pod_template: FreeObject = Field(default={}, description="A PodTemplateSpec merged over what the operator builds.")


class Rollout(SpecModel):
    """The pods with vLLM: replicas x gpusPerPod / tensorParallel engines. In Colocated mode there are none."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Rollout pods; `kubectl scale` changes this number. Not used in Colocated mode.",
    )
    gpus_per_pod: int = Field(
        default=1,
        ge=0,
        le=64,
        description="GPUs of each pod. 0 is a pod on processors with one engine. Not used in Colocated mode.",
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=64,
        description="GPUs over which one vLLM engine spreads the model. 1 is fastest when the model fits one GPU.",
    )
    resources: Resources = Field(default=Resources(), description="Resources of each rollout pod.")
    pod_template: FreeObject = Field(default={}, description="A PodTemplateSpec merged over what the operator builds.")


class Topology(SpecModel):
    """Pods of the job by role."""

    mode: Literal["Separated", "Colocated"] = Field(
        default="Colocated",
        description="`Colocated` runs vLLM on the trainer's pods, taking turns, and is strictly on-policy; `Separated` "
        "gives rollouts their own pods, so that both work at once and each can be sized for itself.",
    )
    gpu_resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        description="Name of the GPU resource of the nodes' device plug-in.",
    )
    head: Head = Field(default=Head(), description="The pod with Ray's head and the driver.")
    trainer: Trainer = Field(default=Trainer(), description="The pods with FSDP workers.")
    rollout: Rollout = Field(default=Rollout(), description="The pods with vLLM (Separated mode).")

    @property
    def layout(self) -> Layout:
        """How many pods, ranks, engines and GPUs that makes."""
        return Layout(
            separated=self.mode == "Separated",
            trainer_pods=self.trainer.replicas,
            trainer_gpus=self.trainer.gpus_per_pod,
            rollout_pods=self.rollout.replicas,
            rollout_gpus=self.rollout.gpus_per_pod,
            tensor_parallel=self.rollout.tensor_parallel,
        )
