"""What all of a job's objects share: names, labels and owner."""

from typing import Any, Final

from dapo_core.naming import API_VERSION, KIND, LABEL_JOB

Object = dict[str, Any]

# Where the digest of an object's wanted content is kept, so that a changed one is told apart without reading it.
DIGEST: Final = "dapo.io/digest"
HEAD_PORT: Final = 6379
JOB_FOLDER: Final = "/etc/dapo"
WORK_FOLDER: Final = "/var/lib/dapo"


def service_name(job: str) -> str:
    """The headless Service of a job's pods: a pod's address is `{pod}.{job}.{namespace}.svc`."""
    return job


def config_name(job: str) -> str:
    """The ConfigMap with the job file."""
    return f"{job}-job"


def token_name(job: str) -> str:
    """The Secret with the job's Ray token."""
    return f"{job}-ray"


def group_name(job: str, attempt: int) -> str:
    """The pod group of one attempt: a scheduler never mixes two attempts' pods."""
    return f"{job}-{attempt}"


def owner(job: str, uid: str) -> Object:
    """The owner reference by which Kubernetes removes what a deleted job leaves."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def support_labels(job: str) -> dict[str, str]:
    """Labels of everything of a job that is not a pod."""
    return {
        "app.kubernetes.io/name": "dapo",
        "app.kubernetes.io/managed-by": "dapo-operator",
        LABEL_JOB: job,
    }


def support(api_version: str, kind: str, name: str, namespace: str, job: str, uid: str, **content: Any) -> Object:
    """An object beside the pods."""
    meta = {"name": name, "namespace": namespace, "labels": support_labels(job), "ownerReferences": [owner(job, uid)]}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, **content}
