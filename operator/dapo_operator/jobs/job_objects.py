"""What all of a job's objects share: the installation's defaults, names, labels, owner and digest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dapo_core.naming import API_VERSION, KIND, LABEL_JOB, Role

Object = dict[str, Any]

# The annotation with the digest of an object's wanted content: changes are found without reading the object.
DIGEST: Final = "dapo.io/digest"
HEAD_PORT: Final = 6379
JOB_FOLDER: Final = "/etc/dapo"
WORK_FOLDER: Final = "/var/lib/dapo"
MODELS_FOLDER: Final = "/var/cache/dapo"


@dataclass(frozen=True)
class Site:
    """Settings of the installation that apply to all jobs.

    `image` is the trainer image of pods whose template names none; empty: each job has to name one. `topology_key` has
    the node labels within which a job's pods are placed close together, the narrowest first, separated by commas.
    `coscheduler` is the name of the coscheduling scheduler. `dashboard_url` is the dashboard's address, without a
    trailing slash; empty: no dashboard. `status_delay_seconds` is how long an outage of the metadata store lasts before
    the jobs' statuses say so, and how long a new message of a condition waits to be written when nothing else changed;
    new progress waits half as long.
    `pod_templates` are PodTemplateSpecs for the pods of all jobs, or of one role.
    `restricts_templates`: those of a job may not ask for the node or another service account.
    `fixed_user`: pods run as user 1000 unless a template names another; False where the cluster assigns users.
    """

    image: str = ""
    image_pull_policy: str = "IfNotPresent"
    topology_key: str = "nvidia.com/gpu.clique,topology.kubernetes.io/zone"
    dashboard_url: str = ""
    coscheduler: str = "scheduler-plugins-scheduler"
    status_delay_seconds: float = 60.0
    pod_templates: Mapping[Literal["all"] | Role, Mapping[str, Any]] = field(default_factory=dict)
    fixed_user: bool = True
    restricts_templates: bool = False

    @property
    def topology_keys(self) -> list[str]:
        """The labels of `topology_key`."""
        return [key for key in (part.strip() for part in self.topology_key.split(",")) if key]


def digest_of(value: Any) -> str:
    """Twelve hexadecimal digits that change when the value (JSON) does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def service_name(job: str) -> str:
    """The headless Service of a job's pods: a pod's address is `{pod}.{job}.{namespace}.svc`."""
    return job


def config_name(job: str, revision: str | None) -> str:
    """The ConfigMap with the job file of a revision. None: that of a run that an earlier version of the operator began,
    which had one file for all revisions."""
    return f"{job}-job-{revision}" if revision else f"{job}-job"


def token_name(job: str, uid: str, revision: str | None) -> str:
    """The Secret with the job's Ray token. Its name is no other job's, so the operator need not read it. For a run that
    an earlier version of the operator began (`revision` None) it is that version's."""
    return f"{job}-ray-{uid}" if revision else f"{job}-ray"


def group_name(job: str, attempt: int) -> str:
    """The pod group of one attempt: a scheduler never mixes the pods of two attempts."""
    return f"{job}-{attempt}"


def owner(job: str, uid: str) -> Object:
    """The owner reference by which Kubernetes deletes the object with its job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def support_labels(job: str) -> dict[str, str]:
    """Labels of a job's objects other than pods."""
    return {
        "app.kubernetes.io/name": "dapo",
        "app.kubernetes.io/managed-by": "dapo-operator",
        LABEL_JOB: job,
    }


def support(api_version: str, kind: str, name: str, namespace: str, job: str, uid: str, **content: Any) -> Object:
    """An object other than a pod."""
    meta = {"name": name, "namespace": namespace, "labels": support_labels(job), "ownerReferences": [owner(job, uid)]}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, **content}
