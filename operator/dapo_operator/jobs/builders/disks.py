"""The disks of a job's pods: where they work, and where a node keeps models. Pure."""

import math
from typing import Any, Final

from dapo_core.jobspec import ModelCache, Scratch
from dapo_core.naming import Role
from dapo_core.quantity import amount
from dapo_operator.jobs.job_objects import MODELS_FOLDER, WORK_FOLDER, Object

POD_NAME: Final = "DAPO_POD_NAME"  # the folder of a pod in a node's scratch


def work_volume(scratch: Scratch | None) -> Object:
    """The source of the volume in which a pod works."""
    if scratch is None:
        return {"emptyDir": {}}
    if scratch.host_path is not None:
        return {"hostPath": {"path": scratch.host_path, "type": "Directory"}}
    if scratch.storage_class_name is not None:
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": scratch.storage_class_name,
            "resources": {"requests": {"storage": scratch.size}},
        }
        return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
    medium = {"medium": scratch.medium} if scratch.medium else {}
    return {"emptyDir": {"sizeLimit": scratch.size} | medium}


def work_mount(scratch: Scratch | None) -> Object:
    """Pods that share a folder of their node each see only their own part of it."""
    own: Object = {"subPathExpr": f"$({POD_NAME})"} if scratch is not None and scratch.host_path is not None else {}
    return {"name": "dapo-work", "mountPath": WORK_FOLDER, **own}


def ephemeral_request(scratch: Scratch | None) -> dict[str, str]:
    """What the scheduler sets aside on the node's own disk; nothing where the files lie elsewhere."""
    if scratch is None or scratch.host_path or scratch.storage_class_name or scratch.medium:
        return {}
    return {"ephemeral-storage": scratch.size}


def model_volumes(cache: ModelCache | None, role: Role) -> list[Object]:
    """The volume with a node's models. The head reads tokenizer and configuration only, and keeps them to itself; of an
    image there is no part."""
    if cache is None:
        return []
    source: dict[str, Any] = {"emptyDir": {}}
    if cache.image is not None:
        source = {"image": {"reference": cache.image}}
    elif role != "head" and cache.host_path is not None:
        source = {"hostPath": {"path": cache.host_path, "type": "Directory"}}
    elif role != "head":
        source = {"persistentVolumeClaim": {"claimName": cache.claim}}
    return [{"name": "dapo-models", **source}]


def model_mounts(cache: ModelCache | None) -> list[Object]:
    """Where a pod sees it; an image cannot be written."""
    if cache is None:
        return []
    read_only: Object = {"readOnly": True} if cache.image is not None else {}
    return [{"name": "dapo-models", "mountPath": MODELS_FOLDER, **read_only}]


def model_environment(cache: ModelCache | None) -> dict[str, str]:
    """What tells the trainer of it: a cache that it fills, or a folder that is the model."""
    if cache is None:
        return {}
    if cache.image is not None:
        return {"DAPO_MODEL_FOLDER": MODELS_FOLDER}
    return {"DAPO_MODEL_CACHE": MODELS_FOLDER, "DAPO_MODEL_CACHE_BYTES": str(math.ceil(amount(cache.max_size)))}
