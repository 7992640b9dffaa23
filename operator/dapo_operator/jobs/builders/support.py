"""The support objects of a job's pods: Service, ConfigMap, Secret, NetworkPolicy, PodDisruptionBudget."""

import json
from collections.abc import Mapping
from typing import Any, Final

from dapo_core.jobspec import DAPOJob
from dapo_core.naming import LABEL_JOB
from dapo_operator.jobs.job_objects import (
    DIGEST,
    HEAD_PORT,
    Object,
    config_name,
    digest_of,
    service_name,
    support,
    token_name,
)

JOB_FILE: Final = "job.json"
# Kinds of support objects whose content is the same for any spec.
SPEC_FREE: Final = ("Service", "NetworkPolicy")


def support_objects(job: DAPOJob, uid: str, revision: str | None, text: str | None = None) -> list[Object]:
    """All support objects but the token, each with the digest of its content; that of the job file is its revision.
    `text` is the content of the job file; by default `job` is written."""
    name, namespace = job.metadata.name, job.metadata.namespace
    objects = [
        service(name, namespace, uid),
        config_map(job, uid, revision, text),
        network_policy(name, namespace, uid),
        *([disruption_budget(job, uid)] if job.spec.run_policy.disruption == "Deny" else []),
    ]
    for body in objects:
        body["metadata"]["annotations"] = {DIGEST: revision or "" if body["kind"] == "ConfigMap" else digest_of(body)}
    return objects


def service(job: str, namespace: str, uid: str) -> Object:
    """Headless, with the addresses of pods that are not ready yet: Ray's nodes join before they are ready."""
    content = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {LABEL_JOB: job},
        "ports": [{"name": "ray", "port": HEAD_PORT}],
    }
    return support("v1", "Service", service_name(job), namespace, job, uid, spec=content)


def job_file(job: Mapping[str, Any]) -> str:
    """The text of a job file."""
    return json.dumps(job, indent=1, sort_keys=True)


def config_map(job: DAPOJob, uid: str, revision: str | None, text: str | None = None) -> Object:
    """The job file, as the trainer reads it. It is named after its content and never changes: a run keeps its revision
    through upgrades of the platform, and an edit of the spec makes another."""
    name, namespace = job.metadata.name, job.metadata.namespace
    text = text or job_file(job.model_dump(mode="json", by_alias=True, exclude_none=True))
    content = {"immutable": revision is not None, "data": {JOB_FILE: text}}
    return support("v1", "ConfigMap", config_name(name, revision), namespace, name, uid, **content)


def network_policy(job: str, namespace: str, uid: str) -> Object:
    """Only the job's own pods can reach its pods: Ray executes whatever reaches its ports."""
    own = {"matchLabels": {LABEL_JOB: job}}
    content = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
    return support("networking.k8s.io/v1", "NetworkPolicy", job, namespace, job, uid, spec=content)


def disruption_budget(job: DAPOJob, uid: str) -> Object:
    """With `disruption: Deny` no pod that the job needs is evicted voluntarily, only rollouts above minReplicas: until
    the job is suspended or over, a drain waits.
    minAvailable, since maxUnavailable would be computed from the job's scale, which counts only rollout pods."""
    name, namespace = job.metadata.name, job.metadata.namespace
    content: Object = {"minAvailable": sum(job.spec.topology.layout.required_pods.values())}
    content["selector"] = {"matchLabels": {LABEL_JOB: name}}
    content["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    return support("policy/v1", "PodDisruptionBudget", name, namespace, name, uid, spec=content)


def token_secret(job: str, namespace: str, uid: str, revision: str | None) -> Object:
    """The Secret of the Ray token, without its value."""
    return support("v1", "Secret", token_name(job, uid, revision), namespace, job, uid, type="Opaque")
