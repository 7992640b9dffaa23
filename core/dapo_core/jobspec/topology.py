"""The pods of a job: how many of each role, and what each requests."""

from typing import Literal

from pydantic import Field

from dapo_core.jobspec import patterns
from dapo_core.jobspec.base import FreeObject, Quantity, SpecModel
from dapo_core.jobspec.layout import Layout


class Resources(SpecModel):
    """What each pod of a role requests, besides its GPUs."""

    cpu: Quantity = Field(default="8", description='CPU request: 4 or "500m".')
    memory: Quantity = Field(default="64Gi", description='Memory request and limit: "64Gi".')
    shm: Quantity = Field(
        default="16Gi",
        description="Size of /dev/shm, which counts towards memory. Ray's object store and NCCL use it; the 64 MiB "
        "that a container has by default end in a bus error.",
    )


class HeadResources(Resources):
    """What the head pod requests. It holds the batch in memory: `dapo plan` says how much of it a job needs."""

    cpu: Quantity = Field(default="4", description='CPU request: 4 or "500m".')
    memory: Quantity = Field(
        default="48Gi",
        description='Memory request and limit: "16Gi". 48Gi holds the batch of the paper: 8,192 responses of up to '
        "20,480 tokens.",
    )
    shm: Quantity = Field(
        default="4Gi", description="Size of /dev/shm, which counts towards memory, for Ray's object store."
    )


class Scratch(SpecModel):
    """The disk of a pod: checkpoints until they are stored, model and data. At most one of storageClassName, hostPath
    and medium; without any, the node's own disk (emptyDir), which is requested as ephemeral storage."""

    size: Quantity = Field(
        description='What the pod may write: "500Gi". A trainer pod holds its ranks\' share of a checkpoint (12 bytes '
        "per parameter in all) up to three times, and the model if there is no modelCache."
    )
    storage_class_name: str | None = Field(
        default=None,
        max_length=253,
        pattern=patterns.OBJECT_NAME.regex,
        description="StorageClass of a volume that is created with each pod and removed with it.",
    )
    host_path: str | None = Field(
        default=None,
        max_length=1024,
        pattern=patterns.HOST_PATH.regex,
        description="Folder of the node, such as the mount of a local NVMe disk, writable for everyone. Each pod has a "
        "folder in it, which remains when the pod is gone; `size` is not enforced. Needs a namespace with the "
        "PodSecurity level privileged.",
    )
    medium: Literal["Memory"] | None = Field(
        default=None, description="`Memory` keeps the files in memory, where they count towards resources.memory."
    )


class ModelCache(SpecModel):
    """A volume on which each node keeps models for all pods and attempts. Set exactly one of hostPath, claim and
    image."""

    host_path: str | None = Field(
        default=None,
        max_length=1024,
        pattern=patterns.HOST_PATH.regex,
        description="Folder of each node, writable for user 1000. Needs a namespace with the PodSecurity level "
        "privileged.",
    )
    claim: str | None = Field(
        default=None,
        max_length=253,
        pattern=patterns.OBJECT_NAME.regex,
        description="PersistentVolumeClaim that the nodes can mount at once (ReadWriteMany), with working file locks.",
    )
    image: str | None = Field(
        default=None,
        max_length=1024,
        pattern=patterns.IMAGE.regex,
        description="OCI image or artifact with the files of `model.source` at its root. The kubelet pulls it once for "
        "a node and removes it when disk is short; pods read it and fetch nothing. Needs Kubernetes 1.35, or from 1.31 "
        "the feature gate ImageVolume.",
    )
    max_size: Quantity = Field(
        default="500Gi",
        description="What the cache may hold; not used with `image`. For a new model, those that no pod uses are "
        "removed, the least recently used first.",
    )


class Head(SpecModel):
    """The pod with Ray's head and the driver. It has no GPU."""

    resources: HeadResources = Field(default=HeadResources(), description="Resources of the head pod.")
    scratch: Scratch | None = Field(
        default=None, description="Disk of each pod. If not set, the node's own, without a request or a limit."
    )
    pod_template: FreeObject = Field(
        default={}, description="A PodTemplateSpec that is merged over the operator's: image, node selector, ..."
    )


class Trainer(SpecModel):
    """The pods with the FSDP workers: replicas x gpusPerPod ranks."""

    replicas: int = Field(default=1, ge=1, le=1000, description="Number of trainer pods.")
    gpus_per_pod: int = Field(
        default=1,
        ge=0,
        le=64,
        description="GPUs of each pod, with one FSDP rank per GPU. 0 means a pod on CPUs with one rank.",
    )
    resources: Resources = Field(default=Resources(), description="Resources of each trainer pod.")
    scratch: Scratch | None = Field(
        default=None, description="Disk of each pod. If not set, the node's own, without a request or a limit."
    )
    pod_template: FreeObject = Field(default={}, description="A PodTemplateSpec that is merged over the operator's.")


class Rollout(SpecModel):
    """The pods with vLLM: replicas x gpusPerPod / tensorParallel engines. Colocated mode has none."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Number of rollout pods, which `kubectl scale` changes. Not used in Colocated mode.",
    )
    min_replicas: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Rollout pods that an attempt waits for when it starts, and that the gang scheduler reserves with "
        "the other pods. Those above it join when they come, and a running attempt continues with those that are left. "
        "Default: `replicas`.",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="The most that `replicas` may be set to by `kubectl scale` or an autoscaler. Default: no limit.",
    )
    priority_class_name: str | None = Field(
        default=None,
        max_length=253,
        pattern=patterns.OBJECT_NAME.regex,
        description="PriorityClass of rollout pods, such as a lower one for spot nodes. Default: "
        "`runPolicy.priorityClassName`.",
    )
    gpus_per_pod: int = Field(
        default=1,
        ge=0,
        le=64,
        description="GPUs of each pod. 0 means a pod on CPUs with one engine. Not used in Colocated mode.",
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=64,
        description="GPUs over which one vLLM engine shards the model. 1 is fastest if the model fits on one GPU.",
    )
    resources: Resources = Field(default=Resources(), description="Resources of each rollout pod.")
    scratch: Scratch | None = Field(
        default=None, description="Disk of each pod. If not set, the node's own, without a request or a limit."
    )
    pod_template: FreeObject = Field(default={}, description="A PodTemplateSpec that is merged over the operator's.")

    @property
    def required(self) -> int:
        """Pods that an attempt waits for when it starts."""
        return self.replicas if self.min_replicas is None else self.min_replicas


class Topology(SpecModel):
    """The pods of the job, by role."""

    mode: Literal["Separated", "Colocated"] = Field(
        default="Colocated",
        description="`Colocated` runs vLLM on the trainer's pods, in turns with training: a step trains on responses "
        "of the policy it begins with, unless dynamicSampling.surplus is Carry. `Separated` gives rollouts their own "
        "pods, so that both run at once and each can be sized by itself; responses are about one step behind the "
        "policy.",
    )
    gpu_resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        description="Resource name of GPUs, as the nodes' device plugin defines it.",
    )
    model_cache: ModelCache | None = Field(
        default=None,
        description="Volume that keeps models on each node (hf:// and s3://). If not set, each pod of each attempt "
        "fetches the model to its own disk.",
    )
    pod_template: FreeObject = Field(
        default={},
        description="A PodTemplateSpec for the pods of all roles. It is merged over the installation's, and the "
        "role's own over it.",
    )
    head: Head = Field(default=Head(), description="The pod with Ray's head and the driver.")
    trainer: Trainer = Field(default=Trainer(), description="The pods with the FSDP workers.")
    rollout: Rollout = Field(default=Rollout(), description="The pods with vLLM (Separated mode).")

    @property
    def layout(self) -> Layout:
        """How many pods, ranks, engines and GPUs that makes."""
        return Layout(
            separated=self.mode == "Separated",
            trainer_pods=self.trainer.replicas,
            trainer_gpus=self.trainer.gpus_per_pod,
            rollout_pods=self.rollout.replicas,
            required_rollout_pods=self.rollout.required,
            rollout_gpus=self.rollout.gpus_per_pod,
            tensor_parallel=self.rollout.tensor_parallel,
        )
