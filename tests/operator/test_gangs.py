"""What every gang scheduler has to keep to, and what each of them is asked for."""

from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
from builders import job as job_with
from planner_bench import SITE

from dapo_operator.jobs.builders.gang_request import quantity_text, requests_of, reservation
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.gangs.gang_scheduler import AttemptOutcome, PodSetAssignment, Reservation
from dapo_operator.jobs.gangs.kueue import placed, with_flavors
from dapo_operator.jobs.gangs.schedulers import QUEUEING, SCHEDULERS

SMALL = {"cpu": "500m", "memory": "1Gi", "shm": "1Gi"}
TOPOLOGY = {
    "mode": "Separated",
    "head": {"resources": SMALL},
    "trainer": {"replicas": 2, "gpusPerPod": 8, "resources": SMALL},
    "rollout": {"replicas": 1, "gpusPerPod": 4, "resources": SMALL},
}
NEEDS = {"cpu": "2", "memory": str(4 * 2**30), "nvidia.com/gpu": "20"}


def gang_of(scheduler: str) -> dict[str, str]:
    return {"scheduler": scheduler} | ({"queue": "team"} if scheduler in ("volcano", "kueue", "kai") else {})


def asked(scheduler: str, labels: dict[str, str] | None = None, **policy: Any) -> dict[str, Any]:
    job = job_with(topology=TOPOLOGY, runPolicy={"gang": gang_of(scheduler), **policy})
    if labels:
        job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": labels})})
    return reservation(job, "uid", 3, SITE) or {}


@pytest.mark.parametrize("name", QUEUEING)
def test_contract(name: str) -> None:
    """One object for each attempt, which its job owns, and which tells by itself whose it is."""
    scheduler, body = SCHEDULERS[name], asked(name)
    assert scheduler.resource is not None
    assert body["apiVersion"] == scheduler.resource.api_version
    meta = body["metadata"]
    assert (meta["name"], meta["namespace"]) == ("first-3", "default")
    assert (meta["labels"]["dapo.io/job"], meta["labels"]["dapo.io/attempt"]) == ("first", "3")
    assert [owner["uid"] for owner in meta["ownerReferences"] if owner["controller"]] == ["uid"]
    assert body == asked(name), "builders are pure"

    body["metadata"]["uid"] = "uid-of-it"
    seen = scheduler.observe(body)
    assert seen is not None
    assert (seen.scheduler, seen.name, seen.uid, seen.attempt) == (name, "first-3", "uid-of-it", 3)
    assert seen.admitted is not scheduler.waits, "one that waits is not admitted by asking"
    assert (seen.revoked, seen.deactivated) == (None, False)

    earlier = deepcopy(body)
    del earlier["metadata"]["labels"]["dapo.io/attempt"]
    assert scheduler.observe(earlier) == seen, "as earlier versions of the operator made them"
    earlier["metadata"]["name"] = "foreign"
    assert scheduler.observe(earlier) is None


def test_without_a_gang_scheduler_nothing_is_reserved() -> None:
    assert asked("none") == {}


@pytest.mark.parametrize(
    ("number", "shown"), [(Fraction(2), "2"), (Fraction(5, 2), "2500m"), (Fraction(1, 10**6), "1m")], ids=str
)
def test_a_sum_is_written_as_a_quantity(number: Fraction, shown: str) -> None:
    assert quantity_text(number) == shown


def test_what_the_scheduler_counts_for_a_pod() -> None:
    def container(cpu: str, kind: str = "requests", **fields: Any) -> dict[str, Any]:
        return {"resources": {kind: {"cpu": cpu}}, **fields}

    spec = {
        "containers": [container("1"), container("2", "limits"), {}],
        "initContainers": [container("500m", restartPolicy="Always"), container("3"), container("9")],
    }
    assert requests_of(spec) == {"cpu": 9}, "the largest that runs before them"
    spec["initContainers"].pop()
    assert requests_of(spec) == {"cpu": Fraction(7, 2)}, "those that run together"


@pytest.mark.parametrize(
    ("scheduler", "spec"),
    [
        ("volcano", {"minMember": 4, "minResources": NEEDS, "queue": "team", "priorityClassName": "high"}),
        ("coscheduling", {"minMember": 4, "minResources": NEEDS, "scheduleTimeoutSeconds": 3600}),
        ("kai", {"minMember": 4, "queue": "team", "priorityClassName": "high"}),
        (
            "kubernetes",
            {
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "disruptionMode": {"all": {}},
                "priorityClassName": "high",
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pod_group(scheduler: str, spec: dict[str, Any]) -> None:
    made = asked(scheduler, priorityClassName="high", startTimeoutSeconds=7200)
    assert (made["kind"], made["spec"]) == ("PodGroup", spec)


def test_a_workload() -> None:
    """What decides on resources and nodes, and no other field of the pods."""
    spec = asked("kueue")["spec"]
    assert spec["queueName"] == "team"
    assert [(each["name"], each["count"]) for each in spec["podSets"]] == [("head", 1), ("trainer", 2), ("rollout", 1)]
    trainer = spec["podSets"][1]["template"]["spec"]
    assert trainer["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert set(trainer["containers"][0]) == {"name", "image", "resources"}
    assert "hostname" not in trainer


@pytest.mark.parametrize(
    ("labels", "reference"),
    [
        (None, {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}),
        (
            {"kueue.x-k8s.io/priority-class": "urgent"},
            {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"},
        ),
    ],
    ids=["of the pods", "of the Workload"],
)
def test_a_workloads_priority_class(labels: dict[str, str] | None, reference: dict[str, str]) -> None:
    assert asked("kueue", labels, priorityClassName="high")["spec"]["priorityClassRef"] == reference


@pytest.mark.parametrize(
    ("scheduler", "least"),
    [
        ("volcano", {"minMember": 5}),
        ("coscheduling", {"minMember": 5}),
        ("kai", {"minMember": 5}),
        ("kubernetes", {"schedulingPolicy": {"gang": {"minCount": 5}}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rollouts_that_may_join_later_are_not_reserved(scheduler: str, least: dict[str, Any]) -> None:
    topology = TOPOLOGY | {"rollout": {"replicas": 8, "minReplicas": 2, "gpusPerPod": 4, "resources": SMALL}}
    made = reservation(job_with(topology=topology, runPolicy={"gang": gang_of(scheduler)}), "uid", 1, SITE) or {}
    assert made["spec"] == made["spec"] | least
    if "minResources" in made["spec"]:
        assert made["spec"]["minResources"]["nvidia.com/gpu"] == "24"


def test_kueue_may_admit_a_part_of_the_rollouts() -> None:
    topology = TOPOLOGY | {"rollout": {"replicas": 8, "minReplicas": 2, "gpusPerPod": 4, "resources": SMALL}}
    made = reservation(job_with(topology=topology, runPolicy={"gang": gang_of("kueue")}), "uid", 1, SITE) or {}
    counts = [(each["name"], each["count"], each.get("minCount")) for each in made["spec"]["podSets"]]
    assert counts == [("head", 1, None), ("trainer", 2, None), ("rollout", 8, 2)]


@pytest.mark.parametrize(
    ("annotation", "value", "request_of_it"),
    [("required", "rack", {"required": "rack"}), ("unconstrained", "true", {"unconstrained": True})],
    ids=["required", "unconstrained"],
)
def test_a_topology_request_is_the_pods_annotation(annotation: str, value: str, request_of_it: dict[str, Any]) -> None:
    meta = {"metadata": {"annotations": {f"kueue.x-k8s.io/podset-{annotation}-topology": value}}}
    topology = TOPOLOGY | {"trainer": TOPOLOGY["trainer"] | {"podTemplate": meta}}  # type: ignore[operator]
    made = reservation(job_with(topology=topology, runPolicy={"gang": gang_of("kueue")}), "uid", 1, SITE) or {}
    requests_of = [each.get("topologyRequest") for each in made["spec"]["podSets"]]
    assert requests_of == [None, request_of_it, None]


@pytest.mark.parametrize(
    ("scheduler", "annotations", "content"),
    [
        (
            "volcano",
            {"volcano.sh/network-topology-mode": "hard", "volcano.sh/network-topology-highest-tier": "2"},
            {"networkTopology": {"mode": "hard", "highestTierAllowed": 2}},
        ),
        (
            "volcano",
            {"volcano.sh/network-topology-highest-tier": "two"},
            {"networkTopology": {"highestTierAllowed": "two"}},
        ),
        (
            "kai",
            {
                "kai.scheduler/topology": "cluster",
                "kai.scheduler/topology-required-placement": "zone",
                "kai.scheduler/topology-preferred-placement": "rack",
            },
            {
                "topologyConstraint": {
                    "topology": "cluster",
                    "requiredTopologyLevel": "zone",
                    "preferredTopologyLevel": "rack",
                }
            },
        ),
    ],
    ids=["volcano", "no number", "kai"],
)
def test_a_gang_in_one_domain(scheduler: str, annotations: dict[str, str], content: dict[str, Any]) -> None:
    """The annotations of Volcano and KAI, on pods of any role, are about the whole gang."""
    template = {"podTemplate": {"metadata": {"annotations": annotations}}}
    topology = TOPOLOGY | {"trainer": TOPOLOGY["trainer"] | template}  # type: ignore[operator]
    made = reservation(job_with(topology=topology, runPolicy={"gang": gang_of(scheduler)}), "uid", 1, SITE) or {}
    assert made["spec"] == asked(scheduler)["spec"] | content


@pytest.mark.parametrize(
    ("scheduler", "labels", "annotations", "fields"),
    [
        ("volcano", {}, {"scheduling.k8s.io/group-name": "first-3"}, {"schedulerName": "volcano"}),
        (
            "coscheduling",
            {"scheduling.x-k8s.io/pod-group": "first-3"},
            {},
            {"schedulerName": "scheduler-plugins-scheduler"},
        ),
        ("kueue", {}, {"kueue.x-k8s.io/workload": "first-3"}, {}),
        (
            "kai",
            {"kai.scheduler/queue": "team"},
            {"pod-group-name": "first-3", "kai.scheduler/skip-podgrouper": "true"},
            {"schedulerName": "kai-scheduler"},
        ),
        ("kubernetes", {}, {}, {"schedulingGroup": {"podGroupName": "first-3"}}),
        ("none", {}, {}, {}),
    ],
    ids=["volcano", "coscheduling", "kueue", "kai", "kubernetes", "none"],
)
def test_pods_name_their_group(
    scheduler: str, labels: dict[str, str], annotations: dict[str, str], fields: dict[str, Any]
) -> None:
    made = pod(job_with(topology=TOPOLOGY, runPolicy={"gang": gang_of(scheduler)}), "uid", "run", "trainer", 3, 1, SITE)
    plain = pod(job_with(topology=TOPOLOGY), "uid", "run", "trainer", 3, 1, SITE)
    meta = made["metadata"]
    foreign = ("dapo.io/", "app.kubernetes.io/")
    assert {key: value for key, value in meta["labels"].items() if not key.startswith(foreign)} == labels
    assert meta.get("annotations", {}) == annotations
    assert {key: value for key, value in made["spec"].items() if value != plain["spec"].get(key)} == fields


def test_a_sidecar_counts_and_what_is_no_quantity_is_left_to_the_api_server() -> None:
    def needs(cpu: str) -> dict[str, str] | None:
        sidecar = {"name": "side", "image": "x", "resources": {"requests": {"cpu": cpu}}}
        topology = {"head": {"resources": SMALL, "podTemplate": {"spec": {"containers": [sidecar]}}}}
        job = job_with(topology=TOPOLOGY | topology, runPolicy={"gang": {"scheduler": "coscheduling"}})
        found: dict[str, str] | None = (reservation(job, "uid", 1, SITE) or {})["spec"].get("minResources")
        return found

    assert (needs("250m") or {})["cpu"] == "2250m"
    assert needs("a lot") is None


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("status", "active", "expected"),
    [
        ({}, True, (False, None, False, "")),
        (
            {"conditions": [condition("QuotaReserved", "False", message="8 more GPUs needed")]},
            True,
            (False, None, False, "8 more GPUs needed"),
        ),
        ({"conditions": [condition("Admitted", "True")]}, True, (True, None, False, "")),
        (
            {"conditions": [condition("Admitted", "True"), condition("Evicted", "True", "Preempted", "To make room.")]},
            True,
            (True, "Kueue: Workload first-3 is Evicted (Preempted). To make room.", False, ""),
        ),
        ({"conditions": [condition("Admitted", "False")]}, False, (False, None, True, "")),
    ],
    ids=["new", "queued", "admitted", "evicted", "deactivated"],
)
def test_what_kueue_says_of_a_workload(status: dict[str, Any], active: bool, expected: tuple[Any, ...]) -> None:
    body = asked("kueue")
    seen = SCHEDULERS["kueue"].observe(body | {"spec": body["spec"] | {"active": active}, "status": status})
    assert seen is not None
    assert (seen.admitted, seen.revoked, seen.deactivated, seen.message) == expected


def test_an_eviction_of_pods_that_are_not_ready_in_time() -> None:
    status = {"conditions": [condition("Evicted", "True", "PodsReadyTimeout", "Exceeded it.")]}
    seen = SCHEDULERS["kueue"].observe(asked("kueue") | {"status": status})
    assert seen is not None
    assert (seen.late, seen.knows_ready) == (True, False)
    assert seen.revoked == "Kueue: Workload first-3 is Evicted (PodsReadyTimeout). Exceeded it."


@pytest.mark.parametrize(
    ("outcome", "kind", "reason"),
    [
        (None, "PodsReady", "Started"),
        (AttemptOutcome(True, "Done."), "Finished", "Succeeded"),
        (AttemptOutcome(False, "Crashed."), "Finished", "Failed"),
    ],
    ids=["ready", "succeeded", "failed"],
)
def test_what_kueue_is_told(outcome: AttemptOutcome | None, kind: str, reason: str) -> None:
    """A condition as its own integrations write it, of this Workload and no later one of its name."""
    known = Reservation("kueue", "first-3", "uid-of-it", 3)
    body = SCHEDULERS["kueue"].report(known, "default", outcome, "2026-01-01T00:00:00Z")
    assert body is not None
    assert body["metadata"] == {"name": "first-3", "namespace": "default", "uid": "uid-of-it"}
    [said] = body["status"]["conditions"]
    assert set(said) == {"type", "status", "reason", "message", "lastTransitionTime"}
    assert (said["type"], said["status"], said["reason"]) == (kind, "True", reason)
    seen = SCHEDULERS["kueue"].observe(asked("kueue") | {"status": body["status"]})
    assert seen is not None
    assert seen.knows_ready is (kind == "PodsReady")


def test_pods_run_where_kueue_admitted_them() -> None:
    """With the flavors' labels and tolerations, what admission checks add, and the gate of a topology."""
    admission = {
        "podSetAssignments": [
            {"name": "head", "flavors": {"cpu": "spot"}},
            {"name": "trainer", "flavors": {"cpu": "spot", "nvidia.com/gpu": "h100"}, "topologyAssignment": {}},
        ]
    }
    check = {"name": "capacity", "podSetUpdates": [{"name": "trainer", "annotations": {"request": "7"}}]}
    seen = SCHEDULERS["kueue"].observe(
        asked("kueue") | {"status": {"admission": admission, "admissionChecks": [check]}}
    )
    assert seen is not None
    assert seen.placements["head"] == PodSetAssignment(flavors=("spot",))
    spot = [{"key": "spot", "operator": "Exists"}]
    flavors: dict[str, dict[str, Any]] = {
        "spot": {"tolerations": spot},
        "h100": {"nodeLabels": {"gpu": "h100"}, "tolerations": spot},
    }
    rack = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    bare = {"metadata": {"labels": {"a": "b"}, "annotations": rack}, "spec": {"nodeSelector": {"zone": "a"}}}
    made = placed(bare, with_flavors(seen.placements["trainer"], flavors))
    assert made["spec"] == {
        "nodeSelector": {"zone": "a", "gpu": "h100"},
        "tolerations": spot,
        "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
    }
    assert made["metadata"]["labels"] == {"a": "b", "kueue.x-k8s.io/podset": "trainer"}
    assert made["metadata"]["annotations"] == rack | {"request": "7"}
    # Kueue takes the gate off pods with an annotation only, also where the pod asks for nothing and its flavor has one.
    plain = placed({"metadata": {}, "spec": {}}, PodSetAssignment(gates=("kueue.x-k8s.io/topology",)))
    assert plain["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}
