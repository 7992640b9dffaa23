"""What is read from a pod."""

from typing import Any

import pytest

from dapo_operator.jobs.observed import Pod, pod_of
from dapo_operator.jobs.planner.pod_failures import ending_of


def read(status: dict[str, Any], spec: dict[str, Any] | None = None, **meta: Any) -> Pod:
    labels = {"dapo.io/role": "trainer", "dapo.io/attempt": "2", "dapo.io/index": "7"}
    pod = pod_of(
        {"metadata": {"name": "p", "uid": "u", "labels": labels, **meta}, "spec": spec or {}, "status": status}
    )
    assert pod is not None
    return pod


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"phase": "Failed", "containerStatuses": [{"name": "side"}, {"name": "dapo", "state": state}]}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def test_who_it_is() -> None:
    pod = read({"phase": "Running"}, {"nodeName": "a"})
    assert (pod.role, pod.attempt, pod.index, pod.scheduled) == ("trainer", 2, 7, True)


def test_a_pod_of_somebody_else_is_none() -> None:
    assert pod_of({"metadata": {"name": "p", "labels": {"dapo.io/job": "x"}}}) is None


def test_last_words() -> None:
    pod = read(ended(11, '{"reason": "BadData", "message": "row 7", "step": 3}'))
    assert pod.exit_code == 11 and pod.words is not None
    assert (pod.words.reason, pod.words.message, pod.words.step) == ("BadData", "row 7", 3)


def test_the_end_of_a_log_in_their_place() -> None:
    pod = read(ended(1, "Traceback ...\nValueError: x"))
    assert pod.words is not None and (pod.words.reason, pod.words.message[-13:]) == ("", "ValueError: x")


def test_out_of_memory() -> None:
    assert read(ended(137, reason="OOMKilled")).out_of_memory


@pytest.mark.parametrize(
    ("reason", "means"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("EvictionByEvictionAPI", "Evicted"),
        ("DeletionByTaintManager", "NodeLost"),
        ("DeletionByPodGC", "NodeLost"),
        ("TerminationByKubelet", "Evicted"),
        ("SomethingNew", "Evicted"),
    ],
)
def test_disruptions(reason: str, means: str) -> None:
    assert read({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}).disruption == means


def test_kueue_stops_a_pod() -> None:
    condition = {"type": "TerminationTarget", "status": "True", "reason": "StoppedByKueue"}
    assert read({"conditions": [condition]}).disruption == "Preempted"


@pytest.mark.parametrize("reason", ["Evicted", "NodeLost", "Preempting"])
def test_reasons_of_a_failed_pod(reason: str) -> None:
    pod = read({"phase": "Failed", "reason": reason, "message": "The node was low on memory."})
    assert pod.disruption == {"Preempting": "Preempted"}.get(reason, reason)
    assert pod.detail == f"{reason}: The node was low on memory."


@pytest.mark.parametrize(
    "reason",
    [
        *("OutOfcpu", "OutOfnvidia.com/gpu", "OutOfephemeral-storage", "TopologyAffinityError", "InvalidNodeInfo"),
        *("UnexpectedAdmissionError", "NodeAffinity", "UnknownReason", ""),
    ],
)
def test_a_pod_that_its_node_rejected(reason: str) -> None:
    pod = read({"phase": "Failed", "reason": reason, "message": "Pod was rejected: Node has no such GPU"})
    assert (pod.disruption, pod.finished, pod.exit_code) == ("NodeRejected", True, None)
    assert ending_of(pod).message == f"The node of p rejected it ({f'{reason}: ' * bool(reason)}Node has no such GPU)."


def test_a_pod_that_its_node_rejected_after_a_restart_of_the_kubelet() -> None:
    """Its containers have a status by then, but none ever ran."""
    status = {"name": "dapo", "state": waiting("ContainerCreating")}
    pod = read({"phase": "Failed", "reason": "TopologyAffinityError", "containerStatuses": [status]})
    assert pod.disruption == "NodeRejected"


def test_a_failed_init_container_is_named() -> None:
    end = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no route to host"}}
    init = [{"name": "mount", "state": {"terminated": {"exitCode": 0}}}, {"name": "fetch", "state": end}]
    dapo = {"name": "dapo", "state": waiting("PodInitializing")}
    pod = read({"phase": "Failed", "initContainerStatuses": init, "containerStatuses": [dapo]})
    assert (pod.disruption, pod.finished, pod.exit_code) == (None, True, None)
    assert ending_of(pod).message == (
        "Init container fetch of p ended with exit code 3 (no route to host); see `kubectl logs p -c fetch`."
    )


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"containerStatuses": [{"name": "dapo", "state": waiting("ImagePullBackOff")}]}, "ImagePullBackOff"),
        ({"initContainerStatuses": [{"name": "i", "state": waiting("ErrImagePull")}]}, "ErrImagePull"),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}, "Unschedulable"),
        ({"containerStatuses": [{"name": "dapo", "state": waiting("ContainerCreating")}]}, None),
    ],
    ids=["image", "init container", "no node", "ordinary"],
)
def test_troubles(status: dict[str, Any], reason: str | None) -> None:
    assert read(status).trouble_reason == reason


def test_a_deletion_and_until_when() -> None:
    pod = read({"phase": "Running"}, deletionTimestamp="2026-11-21T08:00:30Z")
    assert pod.deleting and pod.delete_by is not None and not pod.finished


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"conditions": [{}]}, id="a condition without a type"),
        pytest.param({"containerStatuses": [{"name": "dapo", "state": {"terminated": 5}}]}, id="a number as a state"),
        pytest.param({"containerStatuses": 7}, id="no list of containers"),
    ],
)
def test_a_pod_whose_status_cannot_be_understood_still_exists(status: Any) -> None:
    """Its deletion has to be seen, or the next attempt waits for it for ever."""
    labels = {"dapo.io/role": "head", "dapo.io/attempt": "2", "dapo.io/index": "0"}
    meta = {"name": "p", "labels": labels, "deletionTimestamp": "2026-11-22T08:00:00Z", "finalizers": ["a/b"]}
    pod = pod_of({"metadata": meta, "spec": {"nodeName": "n"}, "status": status})
    assert pod is not None
    assert (pod.attempt, pod.deleting, pod.finalizers, pod.node, pod.ready) == (2, True, ("a/b",), "n", False)


@pytest.mark.parametrize(
    ("image", "image_id", "expected"),
    [
        ("trainer:1", "docker.io/library/trainer@sha256:ab", "trainer@sha256:ab"),
        ("r.example.org:5000/t", "r.example.org:5000/t@sha256:ab", "r.example.org:5000/t@sha256:ab"),
        (
            "r.example.org:5000/t:1",
            "docker-pullable://r.example.org:5000/t@sha256:ab",
            "r.example.org:5000/t@sha256:ab",
        ),
        ("team/t@sha256:ab", "docker.io/team/t@sha256:ab", "team/t@sha256:ab"),
        ("localhost/t:1", "sha256:ab", None),
        ("localhost/t:1", "docker.io/library/import-2026-01-01@sha256:ab", None),
        ("trainer:1", "", None),
    ],
    ids=["tag", "port", "docker", "digest", "loaded", "imported", "not started"],
)
def test_d8_the_image_that_a_node_has_run(image: str, image_id: str, expected: str | None) -> None:
    status = {"containerStatuses": [{"name": "dapo", "imageID": image_id}]}
    pod = read(status, {"containers": [{"name": "side", "image": "other"}, {"name": "dapo", "image": image}]})
    assert (pod.image, pod.image_by_digest) == (image, expected)


RUNS: dict[str, Any] = {"running": {}}
SINCE = "2027-01-15T08:00:00Z"
UNREADY = [{"type": "ContainersReady", "status": "False", "lastTransitionTime": SINCE}]


@pytest.mark.parametrize(
    ("containers", "conditions", "since"),
    [
        ([{"name": "dapo", "ready": False, "state": RUNS}], UNREADY, 1_800_000_000.0),
        ([{"name": "dapo", "ready": True, "state": RUNS}], [{"type": "Ready", "status": "False"}], None),
        ([{"name": "dapo", "ready": False, "state": {"terminated": {"exitCode": 1}}}], UNREADY, None),
        ([{"name": "dapo", "ready": False, "state": {}}], UNREADY, None),
        ([{"name": "dapo", "ready": False, "state": RUNS}, {"name": "side", "ready": False}], UNREADY, None),
        ([{"name": "dapo", "ready": True, "state": RUNS}, {"name": "side", "ready": False}], UNREADY, None),
        ([{"name": "dapo", "ready": False, "state": RUNS}, {"name": "side", "ready": True}], UNREADY, 1_800_000_000.0),
        ([{"name": "dapo", "ready": False, "state": RUNS}], [], None),
    ],
    ids=[
        "its kubelet says so",
        "only the node controller, which does not hear the node",
        "it has ended",
        "it waits",
        "with a sidecar",
        "only a sidecar",
        "without its sidecar",
        "since when is not known",
    ],
)
def test_a_container_that_runs_without_being_ready(
    containers: list[dict[str, Any]], conditions: list[dict[str, Any]], since: float | None
) -> None:
    status = {"phase": "Running", "containerStatuses": containers, "conditions": conditions}
    assert read(status).silent_since == since
