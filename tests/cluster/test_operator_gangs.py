"""Gang schedulers, of which only the API is there: the groups as their own schemas have them, and Kueue's doings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import JobOn, job_on
from operator_process import SHARED
from servers.kubernetes_objects import Kubernetes

# Most of it is waiting, so it is begun here and asked for its outcome at the end.
pytestmark = pytest.mark.usefixtures("lost_node")

INTEGER = {"type": "integer", "format": "int32"}
AMOUNTS = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|"
        r"(\.[0-9]+))))?$",
    },
}
# The fields of a PodGroup's spec that volcano.sh/apis v1.12 and scheduler-plugins v0.31 have, and no other: the
# operator creates with strict validation, so one that they do not know would be refused.
VOLCANO = {
    "minMember": INTEGER,
    "minTaskMember": {"type": "object", "additionalProperties": INTEGER},
    "queue": {"type": "string", "default": "default"},
    "priorityClassName": {"type": "string"},
    "minResources": AMOUNTS,
    "networkTopology": {"type": "object", "properties": {"mode": {"type": "string"}}},
}
COSCHEDULING = {"minMember": INTEGER | {"minimum": 1}, "minResources": AMOUNTS, "scheduleTimeoutSeconds": INTEGER}
NEEDS = {"cpu": "2", "memory": str(2 * 2**30), "nvidia.com/gpu": "1"}


@pytest.fixture
def job(request: pytest.FixtureRequest, kubernetes: Kubernetes, shared: Path) -> Iterator[JobOn]:
    """A job named after the test, in the namespace where the shared operator works."""
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].strip("-")
    with job_on(kubernetes, SHARED, name) as made:
        yield made


def test_volcano(job: JobOn) -> None:
    install(job.kubernetes, "scheduling.volcano.sh", "v1beta1", VOLCANO)
    gang = {"scheduler": "volcano", "queue": "research"}
    job.submit(runPolicy={"gang": gang, "startTimeoutSeconds": 1, "priorityClassName": "system-node-critical"})
    job.wait(lambda: len(job.pods()) == 2, "pods")
    group = job.kubernetes.api.get(f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{SHARED}/podgroups/{job.name}-1")
    wanted = {"minMember": 2, "queue": "research", "priorityClassName": "system-node-critical", "minResources": NEEDS}
    assert group["spec"] == wanted
    pod = job.pod("trainer")
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == f"{job.name}-1"
    assert job.status()["attempts"][-1]["number"] == 1, "waiting in Volcano's queue is no late start"
    job.delete()
    job.wait_gone()


def test_coscheduling_that_is_installed_late(job: JobOn) -> None:
    job.submit(runPolicy={"gang": {"scheduler": "coscheduling"}, "startTimeoutSeconds": 600})
    job.wait_reason("PodsReady", "GangSchedulerMissing")
    assert job.pods() == []
    install(job.kubernetes, "scheduling.x-k8s.io", "v1alpha1", COSCHEDULING)
    job.wait(lambda: len(job.pods()) == 2, "pods")
    group = job.kubernetes.api.get(f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{SHARED}/podgroups/{job.name}-1")
    assert group["spec"] == {"minMember": 2, "scheduleTimeoutSeconds": 600, "minResources": NEEDS}
    assert job.pod("head")["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == f"{job.name}-1"


def test_kueue_admits_and_preempts(job: JobOn) -> None:
    """Kueue gates the pods of a group until it has quota for all, and deletes them to take it back."""
    gates = {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    topology = {role: {"podTemplate": gates} for role in ("head", "trainer")}
    job.submit(runPolicy={"gang": {"scheduler": "kueue", "queue": "team"}}, topology=topology)
    job.wait_reason("QuotaReserved", "WaitingForQuota")
    meta = job.pod("trainer")["metadata"]
    assert meta["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert meta["labels"]["kueue.x-k8s.io/pod-group-name"] == f"{job.name}-1"
    assert meta["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"

    path = f"/api/v1/namespaces/{SHARED}/pods/{job.name}-{{}}-1-0"
    for role in ("head", "trainer"):
        job.kubernetes.api.patch(path.format(role), [{"op": "remove", "path": "/spec/schedulingGates"}], "json")
    job.wait_phase("Training")
    assert job.condition("QuotaReserved")["status"] == "True"

    taken = {"type": "TerminationTarget", "status": "True", "reason": "StoppedByKueue"}
    for role in ("head", "trainer"):
        job.kubernetes.api.patch(f"{path.format(role)}/status", {"status": {"conditions": [taken]}}, "strategic")
        job.kubernetes.api.delete(path.format(role))
    job.wait(lambda: [pod["metadata"]["labels"]["dapo.io/attempt"] for pod in job.pods()] == ["2", "2"], "a new group")
    assert job.pod("head", attempt=2)["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == f"{job.name}-2"
    assert (job.status()["attempts"][0]["reason"], job.status()["restartsCounted"]) == ("Preempted", 0)


def install(kubernetes: Kubernetes, group: str, version: str, spec: dict[str, Any]) -> None:
    """A scheduler's PodGroup, without what would make sense of it."""
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": spec},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}", "annotations": approved if "x-k8s.io" in group else {}},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.{group}"
    kubernetes.api.apply(path, crd)
    kubernetes.wait_until(
        lambda: any(
            each["type"] == "Established" and each["status"] == "True"
            for each in kubernetes.api.get(path).get("status", {}).get("conditions") or ()
        ),
        "PodGroups are served",
    )
