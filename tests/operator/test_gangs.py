"""What each gang scheduler is given: the group, what it needs, and the labels of its pods."""

from fractions import Fraction
from typing import Any

import pytest
from builders import job as job_with
from planner_bench import SITE

from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.builders.quantities import requests, text
from dapo_operator.jobs.builders.support import support_objects

SMALL = {"cpu": "500m", "memory": "1Gi", "shm": "1Gi"}
TOPOLOGY = {
    "mode": "Separated",
    "head": {"resources": SMALL},
    "trainer": {"replicas": 2, "gpusPerPod": 8, "resources": SMALL},
    "rollout": {"replicas": 1, "gpusPerPod": 4, "resources": SMALL},
}
QUEUES = {"volcano": {"queue": "team"}, "kueue": {"queue": "team"}}


def group(scheduler: str, **policy: Any) -> dict[str, Any]:
    gang = {"scheduler": scheduler, **QUEUES.get(scheduler, {})}
    job = job_with(topology=TOPOLOGY, runPolicy={"gang": gang, **policy})
    found = [each for each in support_objects(job, "uid", 3, "") if each["kind"] == "PodGroup"]
    return found[0] if found else {}


@pytest.mark.parametrize(
    ("number", "shown"), [(Fraction(2), "2"), (Fraction(5, 2), "2500m"), (Fraction(1, 10**6), "1m")], ids=str
)
def test_a_sum_is_written_as_a_quantity(number: Fraction, shown: str) -> None:
    assert text(number) == shown


def test_what_the_scheduler_counts_for_a_pod() -> None:
    def container(cpu: str, kind: str = "requests", **fields: Any) -> dict[str, Any]:
        return {"resources": {kind: {"cpu": cpu}}, **fields}

    spec = {
        "containers": [container("1"), container("2", "limits"), {}],
        "initContainers": [container("500m", restartPolicy="Always"), container("3"), container("9")],
    }
    assert requests(spec) == {"cpu": 9}, "the largest that runs before them"
    spec["initContainers"].pop()
    assert requests(spec) == {"cpu": Fraction(7, 2)}, "those that run together"


def test_volcanos_group() -> None:
    made = group("volcano", priorityClassName="high")
    assert (made["apiVersion"], made["metadata"]["name"]) == ("scheduling.volcano.sh/v1beta1", "first-3")
    needs = {"cpu": "2", "memory": str(4 * 2**30), "nvidia.com/gpu": "20"}
    assert made["spec"] == {"minMember": 4, "minResources": needs, "queue": "team", "priorityClassName": "high"}


def test_coschedulings_group() -> None:
    made = group("coscheduling", startTimeoutSeconds=7200)
    assert made["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert set(made["spec"]) == {"minMember", "minResources", "scheduleTimeoutSeconds"}
    assert made["spec"]["scheduleTimeoutSeconds"] == 3600


@pytest.mark.parametrize("scheduler", ["kueue", "none"])
def test_others_have_no_group(scheduler: str) -> None:
    assert group(scheduler) == {}


@pytest.mark.parametrize(
    ("scheduler", "labels", "annotations", "program"),
    [
        ("volcano", {}, {"scheduling.k8s.io/group-name": "first-3"}, "volcano"),
        ("coscheduling", {"scheduling.x-k8s.io/pod-group": "first-3"}, {}, "scheduler-plugins-scheduler"),
        (
            "kueue",
            {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/pod-group-name": "first-3"},
            {"kueue.x-k8s.io/pod-group-total-count": "4"},
            None,
        ),
        ("none", {}, {}, None),
    ],
    ids=["volcano", "coscheduling", "kueue", "none"],
)
def test_pods_name_their_group(
    scheduler: str, labels: dict[str, str], annotations: dict[str, str], program: str | None
) -> None:
    gang = {"scheduler": scheduler, **QUEUES.get(scheduler, {})}
    made = pod(job_with(topology=TOPOLOGY, runPolicy={"gang": gang}), "uid", "run", "trainer", 3, 1, SITE)
    meta = made["metadata"]
    foreign = ("dapo.io/", "app.kubernetes.io/")
    assert {key: value for key, value in meta["labels"].items() if not key.startswith(foreign)} == labels
    assert meta.get("annotations", {}) == annotations
    assert made["spec"].get("schedulerName") == program


def test_a_sidecar_counts_and_what_is_no_quantity_is_left_to_the_api_server() -> None:
    def needs(cpu: str) -> dict[str, str] | None:
        sidecar = {"name": "side", "image": "x", "resources": {"requests": {"cpu": cpu}}}
        topology = {"head": {"resources": SMALL, "podTemplate": {"spec": {"containers": [sidecar]}}}}
        job = job_with(topology=TOPOLOGY | topology, runPolicy={"gang": {"scheduler": "coscheduling"}})
        made = next(each for each in support_objects(job, "uid", 1, "") if each["kind"] == "PodGroup")
        found: dict[str, str] | None = made["spec"].get("minResources")
        return found

    assert (needs("250m") or {})["cpu"] == "2250m"
    assert needs("a lot") is None
