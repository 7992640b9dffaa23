"""Gang schedulers, of which only the API is there: the groups as their own schemas have them. tests/queues has the real
ones."""

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
