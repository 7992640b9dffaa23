"""What the API server does not take: a clear condition each, and recovery once it is put right."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import JobOn, job_on
from operator_process import QUOTA, SHARED
from servers.kubernetes_objects import Kubernetes
from servers.kubernetes_pods import run, wait


@pytest.fixture
def job(request: pytest.FixtureRequest, kubernetes: Kubernetes, shared: Path) -> Iterator[JobOn]:
    """A job named after the test, in the namespace where the shared operator works."""
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].strip("-")
    with job_on(kubernetes, SHARED, name) as made:
        yield made


def test_quota(kubernetes: Kubernetes, shared: Path) -> None:
    path = f"/api/v1/namespaces/{QUOTA}/resourcequotas"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    kubernetes.api.create(path, quota)
    kubernetes.wait_until(lambda: kubernetes.api.get(f"{path}/few").get("status", {}).get("hard"), "the quota counts")
    with job_on(kubernetes, QUOTA, "much") as job:
        job.submit()
        refused = job.wait_reason("PodsReady", "QuotaExceeded")
        assert "exceeded quota: few" in refused["message"]
        job.wait(lambda: "QuotaExceeded" in job.events(), "its event")
        kubernetes.api.patch(f"{path}/few", {"spec": {"hard": {"pods": "9"}}})
        job.wait_phase("Training")
        assert job.status()["attempts"][-1]["number"] == 1, "the pods that were there are kept"


def test_pod_security(job: JobOn) -> None:
    root = {"name": "dapo", "securityContext": {"runAsUser": 0, "runAsNonRoot": False}}
    job.submit(topology={"trainer": {"podTemplate": {"spec": {"containers": [root]}}}})
    failed = job.wait_reason("Failed", "PodRefused")
    assert "PodSecurity" in failed["message"] and "runAsNonRoot" in failed["message"]
    job.wait(lambda: job.pods() == [], "the head is freed")
    job.kubernetes.api.patch(job.path, {"spec": {"topology": {"trainer": {"podTemplate": None}}}})
    job.wait_phase("Training")
    assert job.condition("Failed")["status"] == "False"


def test_missing_secret(job: JobOn) -> None:
    """The kubelet says so; here a test says it in its place."""
    by_hand = {"metadata": {"annotations": {"tests.dapo.io/start": "by-hand"}}}
    job.submit(topology={"head": {"podTemplate": by_hand}}, stores={"secretName": "nowhere"})
    job.wait(lambda: len(job.pods()) == 2, "pods")
    wait(job.kubernetes.api, job.pod("head"), "CreateContainerConfigError", 'secret "nowhere" not found')
    assert 'secret "nowhere" not found' in job.wait_reason("PodsReady", "ContainerWaiting")["message"]
    run(job.kubernetes.api, job.pod("head"))  # as the kubelet does once the Secret is there
    job.wait_phase("Training")


def test_claim_that_is_not_there(job: JobOn) -> None:
    job.submit(model={"source": "pvc://no-claim/model"})
    message = job.wait_reason("PodsReady", "Unschedulable")["message"]
    assert 'persistentvolumeclaim "no-claim" not found' in message
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "no-claim"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "no-class",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    job.kubernetes.api.create(f"/api/v1/namespaces/{SHARED}/persistentvolumeclaims", claim)
    job.wait(lambda: "unbound" in job.condition("PodsReady")["message"], "the claim has no volume")
    _bind(job.kubernetes, "no-claim", "no-class")
    job.wait_phase("Training")
    assert job.status()["attempts"][-1]["number"] == 1, "the pods that were there are kept"


def _bind(kubernetes: Kubernetes, claim: str, storage_class: str) -> None:
    """Give the claim a volume, as the controller of volumes does once there is such a class."""
    path = f"/api/v1/namespaces/{SHARED}/persistentvolumeclaims/{claim}"
    found = kubernetes.api.get(path)
    meta = {key: found["metadata"][key] for key in ("name", "namespace", "uid")}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": claim},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": storage_class,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **meta},
            "nfs": {"server": "nfs.example", "path": "/"},
        },
    }
    kubernetes.api.create("/api/v1/persistentvolumes", volume)
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    kubernetes.api.patch(path, {"metadata": {"annotations": bound}, "spec": {"volumeName": claim}})
    for each in (path, f"/api/v1/persistentvolumes/{claim}"):
        kubernetes.api.patch(f"{each}/status", {"status": {"phase": "Bound"}})


def test_a_webhook_that_is_down(job: JobOn) -> None:
    """Nothing that the webhook checks can be created while it is down; the operator retries and reports why."""
    hook = {
        "name": "away.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "objectSelector": {"matchLabels": {"dapo.io/job": job.name}},
    }
    kind = "ValidatingWebhookConfiguration"
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "away"}}
    job.kubernetes.api.create(path, body | {"webhooks": [hook]})
    try:
        time.sleep(1)  # the API server takes notice of it
        job.submit()
        refused = job.wait_reason("PodsReady", "ApiRefused")
        assert 'failed calling webhook "away.example.com"' in refused["message"]
    finally:
        job.kubernetes.api.delete(f"{path}/away")
    job.wait_phase("Training")
    assert job.status()["attempts"][-1]["number"] == 1


def test_a_template_of_nulls(job: JobOn) -> None:
    job.submit(topology={"trainer": {"podTemplate": {"metadata": {"labels": None}, "spec": {"containers": None}}}})
    failed = job.wait_reason("Failed", "InvalidSpec", seconds=30)
    assert "spec.topology.trainer.podTemplate.spec.containers is null" in failed["message"]
    job.kubernetes.api.patch(job.path, {"spec": {"topology": {"trainer": {"podTemplate": None}}}})
    job.wait_phase("Training")
