"""What the API server does not take: a clear condition each, and recovery once it is put right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import JobOn, job_on
from operator_process import QUOTA, SHARED
from servers.kubernetes_objects import Kubernetes
from servers.kubernetes_pods import wait

POD_GROUPS = "podgroups.scheduling.volcano.sh"


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


def test_volcano(job: JobOn) -> None:
    _install_volcano(job.kubernetes)
    gang = {"scheduler": "volcano", "queue": "research"}
    job.submit(runPolicy={"gang": gang, "startTimeoutSeconds": 1})
    job.wait(lambda: len(job.pods()) == 2, "pods")
    group = job.kubernetes.api.get(f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{SHARED}/podgroups/{job.name}-1")
    assert group["spec"] == {"minMember": 2, "queue": "research"}
    pod = job.pod("trainer")
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == f"{job.name}-1"
    assert job.status()["attempts"][-1]["number"] == 1, "waiting in Volcano's queue is no late start"
    job.delete()
    job.wait_gone()


def _install_volcano(kubernetes: Kubernetes) -> None:
    """Its PodGroup, without what would make sense of it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": POD_GROUPS},
        "spec": {"group": "scheduling.volcano.sh", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    kubernetes.api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{POD_GROUPS}", crd)
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + POD_GROUPS
    kubernetes.wait_until(
        lambda: any(
            each["type"] == "Established" and each["status"] == "True"
            for each in kubernetes.api.get(path).get("status", {}).get("conditions") or ()
        ),
        "PodGroups are served",
    )
