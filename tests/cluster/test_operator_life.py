"""DAPOJobs on a real API server: pods, ends, and whatever the API server refuses."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cluster_jobs import BY_HAND, JobOn, job_on
from operator_process import SHARED
from servers.kubernetes_api import Refused
from servers.kubernetes_objects import Kubernetes
from servers.kubernetes_pods import finish, pods_of, run, wait


@pytest.fixture
def job(request: pytest.FixtureRequest, kubernetes: Kubernetes, shared: Path) -> Iterator[JobOn]:
    """A job named after the test, in the namespace where the shared operator works."""
    assert shared.exists()
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    with job_on(kubernetes, SHARED, name) as made:
        yield made


def test_from_apply_to_deletion(job: JobOn) -> None:
    job.submit(topology={"mode": "Separated", "rollout": {"replicas": 2}}).wait_phase("Training")
    names = {pod["metadata"]["name"].removeprefix(f"{job.name}-") for pod in job.pods()}
    assert names == {"head-1-0", "trainer-1-0", "rollout-1-0", "rollout-1-1"}
    assert len(job.left_behind()) == 4 + 4, "pods, Service, ConfigMap, Secret, NetworkPolicy"
    status = job.status()
    assert status["observedGeneration"] == job.get()["metadata"]["generation"]
    assert status["attempts"][0]["number"] == 1
    scale = job.kubernetes.api.get(f"{job.path}/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    job.wait(lambda: job.events()[:2] == ["AttemptStarted", "PodsReady"], "its story")
    job.delete()
    job.wait_gone()


def test_complete(job: JobOn) -> None:
    job.submit().wait_phase("Training")
    for role in ("head", "trainer"):
        finish(job.kubernetes.api, job.pod(role), 0)
    job.wait_phase("Succeeded")
    assert len(job.pods()) == 2, "kept for their logs"


def test_permanent_error_in_the_trainers_words(job: JobOn) -> None:
    job.submit().wait_phase("Training")
    words = '{"reason": "BadData", "message": "train.parquet row 7: there is no column prompt.", "step": null}'
    finish(job.kubernetes.api, job.pod("head"), 11, message=words)
    failed = job.wait_reason("Failed", "BadData")
    assert "train.parquet row 7" in failed["message"]
    job.wait_phase("Failed")


@pytest.mark.parametrize("role", ["head", "trainer"])
def test_out_of_memory_is_counted(job: JobOn, role: str) -> None:
    job.submit().wait_phase("Training")
    finish(job.kubernetes.api, job.pod(role), 137, reason="OOMKilled")
    job.wait_attempt(2)
    status = job.status()
    assert (status["attempts"][0]["reason"], status["attempts"][0]["role"]) == ("OOMKilled", role)
    assert status["restartsCounted"] == 1


def test_a_deleted_pod_starts_the_next_attempt(job: JobOn) -> None:
    job.submit().wait_phase("Training")
    job.kubernetes.api.delete(f"/api/v1/namespaces/{SHARED}/pods/{job.name}-trainer-1-0")
    job.wait_attempt(2)
    assert job.status()["restartsCounted"] == 0
    assert {pod["metadata"]["labels"]["dapo.io/attempt"] for pod in job.pods()} == {"2"}


def test_suspend_and_resume(job: JobOn) -> None:
    job.submit().wait_phase("Training")
    job.edit(suspend=True)
    job.wait_phase("Suspended")
    assert job.pods() == []
    job.edit(suspend=False)
    job.wait_attempt(2)


def test_suspend_toggled_quickly(job: JobOn) -> None:
    """An attempt that is ending ends, and the last edit decides what follows."""
    job.submit().wait_phase("Training")
    for suspend in (True, False, True, False):
        job.edit(suspend=suspend)
    job.wait_phase("Training")
    job.wait(lambda: job.status()["observedGeneration"] == job.get()["metadata"]["generation"], "the last word")
    assert len(job.pods()) == 2 and job.status()["restartsCounted"] == 0


def test_deleted_while_pending(job: JobOn) -> None:
    job.submit(topology={"trainer": {"podTemplate": BY_HAND}})
    job.wait(lambda: len(job.pods()) == 2, "pods")
    job.delete()
    job.wait_gone()


def test_a_pod_that_the_cluster_takes_is_not_counted(job: JobOn) -> None:
    job.submit(runPolicy={"disruption": "Deny"}).wait_phase("Training")
    budget = f"/apis/policy/v1/namespaces/{SHARED}/poddisruptionbudgets/{job.name}"
    job.wait(lambda: _healthy(job, budget) == 2, "the budget counts")
    assert job.kubernetes.api.get(budget)["status"]["disruptionsAllowed"] == 0, "no drain takes one"
    _take(job, "DisruptionTarget", "PreemptionByScheduler")
    job.wait(lambda: len(job.status()["attempts"]) == 2, "another attempt")
    assert (job.status()["attempts"][0]["reason"], job.status()["restartsCounted"]) == ("Preempted", 0)


def _healthy(job: JobOn, budget: str) -> int | None:
    """Pods that the budget counts as ready; None while it is not there."""
    found = job.kubernetes.api.items(budget.rpartition("/")[0])
    healthy: list[int | None] = [
        each["status"].get("currentHealthy") for each in found if each["metadata"]["name"] == job.name
    ]
    return healthy[0] if healthy else None


def _take(job: JobOn, kind: str, reason: str) -> None:
    """What takes a pod says so in its status before it deletes it."""
    path = f"/api/v1/namespaces/{job.namespace}/pods/{job.name}-trainer-1-0"
    # Without a time the disruption controller would take it for one that has come to nothing.
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": at}
    job.kubernetes.api.patch(f"{path}/status", {"status": {"conditions": [condition]}}, "strategic")
    job.kubernetes.api.delete(path)


def test_a_store_that_is_away_is_counted(job: JobOn) -> None:
    job.submit().wait_phase("Training")
    words = '{"reason": "StoresUnreachable", "message": "s3://b did not answer for 600 s.", "step": 12}'
    finish(job.kubernetes.api, job.pod("head"), 31, message=words)
    job.wait_attempt(2)
    assert job.status()["attempts"][0]["message"] == "s3://b did not answer for 600 s."
    assert job.status()["restartsCounted"] == 1


def test_active_deadline(job: JobOn) -> None:
    job.submit(runPolicy={"activeDeadlineSeconds": 3})
    job.wait_reason("Failed", "DeadlineExceeded")
    job.wait(lambda: job.pods() == [], "its pods are freed")


def test_image_that_can_not_be_pulled_and_its_repair(job: JobOn) -> None:
    job.submit(topology={"trainer": {"podTemplate": BY_HAND}})
    job.wait(lambda: len(job.pods()) == 2, "pods")
    wait(job.kubernetes.api, job.pod("trainer"), "ImagePullBackOff", "no such image")
    assert "no such image" in job.wait_reason("PodsReady", "ContainerWaiting")["message"]
    job.kubernetes.api.patch(job.path, {"spec": {"topology": {"trainer": {"podTemplate": None}}}})
    job.wait_attempt(2)


def test_start_deadline_frees_a_partial_gang(job: JobOn) -> None:
    job.submit(topology={"trainer": {"podTemplate": BY_HAND}}, runPolicy={"startTimeoutSeconds": 3})
    job.wait(lambda: job.status().get("attempts", [{}])[0].get("reason") == "StartTimeout", "the deadline")
    job.wait(lambda: job.status()["attempts"][-1]["number"] >= 2, "another attempt")
    assert job.status()["restartsCounted"] == 0


def test_a_template_that_fights_the_operator(job: JobOn) -> None:
    job.submit(topology={"trainer": {"podTemplate": {"spec": {"restartPolicy": "Always", "hostname": "x"}}}})
    failed = job.wait_reason("Failed", "InvalidSpec", seconds=5)
    assert "spec.topology.trainer.podTemplate.spec.restartPolicy" in failed["message"]
    assert "spec.topology.trainer.podTemplate.spec.hostname" in failed["message"]
    assert job.pods() == []
    job.kubernetes.api.patch(job.path, {"spec": {"topology": {"trainer": {"podTemplate": None}}}})
    job.wait_phase("Training")


def test_a_template_the_api_server_does_not_know(job: JobOn) -> None:
    job.submit(topology={"trainer": {"podTemplate": {"spec": {"nodeSelektor": {"a": "b"}}}}})
    assert "nodeSelektor" in job.wait_reason("Failed", "PodRefused")["message"]
    job.wait(lambda: job.pods() == [], "no pods")
    job.kubernetes.api.patch(job.path, {"spec": {"topology": {"trainer": {"podTemplate": None}}}})
    job.wait_phase("Training")


def test_five_hundred_variables_and_unicode(job: JobOn) -> None:
    env = [{"name": f"VARIABLE_{n}", "value": f"värde {n} ✓"} for n in range(500)]
    container = {"name": "dapo", "env": env}
    job.submit(topology={"trainer": {"podTemplate": {"spec": {"containers": [container]}}}}).wait_phase("Training")
    names = [each["name"] for each in job.pod("trainer")["spec"]["containers"][0]["env"]]
    assert len(names) > 500 and "DAPO_ROLE" in names


def test_a_name_at_the_limit(kubernetes: Kubernetes, shared: Path) -> None:
    with job_on(kubernetes, SHARED, "n" * 44) as job:
        job.submit(topology={"mode": "Separated"}).wait_phase("Training")
    with pytest.raises(Refused, match="at most 44"):
        JobOn(kubernetes, SHARED, "n" * 45).submit()


def test_a_name_that_somebody_has(job: JobOn) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": job.name}, "spec": {"ports": [{"port": 1}]}}
    path = f"/api/v1/namespaces/{SHARED}/services"
    job.kubernetes.api.create(path, service)
    job.submit()
    job.wait_reason("PodsReady", "NameTaken")
    assert job.pods() == []
    assert job.kubernetes.api.get(f"{path}/{job.name}")["spec"]["ports"][0]["port"] == 1, "and it is left alone"
    job.kubernetes.api.delete(f"{path}/{job.name}")
    job.wait_phase("Training")


def test_frozen_fields_are_refused_with_the_reason(job: JobOn) -> None:
    job.submit().wait_phase("Training")
    with pytest.raises(Refused, match="create a new job"):
        job.edit(model={"source": "hf://c/d"})


def test_rollouts_are_scaled_and_replaced_while_their_attempt_runs(job: JobOn) -> None:
    def wait_for(*names: str) -> None:
        def are_there() -> bool:
            live = [pod for pod in job.pods(role="rollout") if "exitCode" not in str(pod["status"])]
            return {pod["metadata"]["name"].removeprefix(f"{job.name}-") for pod in live} == set(names)

        job.wait(are_there, f"rollouts {names}")

    job.submit(topology={"mode": "Separated", "rollout": {"replicas": 1, "maxReplicas": 2}}).wait_phase("Training")
    with pytest.raises(Refused, match="more than maxReplicas"):
        job.kubernetes.api.patch(f"{job.path}/scale", {"spec": {"replicas": 3}})
    job.kubernetes.api.patch(f"{job.path}/scale", {"spec": {"replicas": 2}})
    wait_for("rollout-1-0", "rollout-1-1")
    finish(job.kubernetes.api, job.pod("rollout"), 1)
    wait_for("rollout-1-0-2", "rollout-1-1")
    job.wait_reason("RolloutsDegraded", "RolloutsReady")
    job.kubernetes.api.patch(f"{job.path}/scale", {"spec": {"replicas": 1}})
    wait_for("rollout-1-0-2")
    assert [attempt["number"] for attempt in job.status()["attempts"]] == [1]


def test_time_to_live(job: JobOn) -> None:
    job.submit(runPolicy={"ttlSecondsAfterFinished": 1}).wait_phase("Training")
    for role in ("head", "trainer"):
        finish(job.kubernetes.api, job.pod(role), 0)
    job.wait_gone()


def test_the_same_name_again_at_once(job: JobOn) -> None:
    job.submit().wait_phase("Training")
    first = job.get()["metadata"]["uid"]
    job.delete()
    job.wait(job.gone, "gone")
    job.submit().wait_phase("Training")
    assert job.get()["metadata"]["uid"] != first
    owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in job.pods()}
    assert owners == {job.get()["metadata"]["uid"]}


def test_pods_found_by_hand_run_too(job: JobOn) -> None:
    """Readiness is what starts training, whoever reports it."""
    job.submit(topology={"head": {"podTemplate": BY_HAND}})
    job.wait(lambda: len(pods_of(job.kubernetes.api, SHARED, job=job.name)) == 2, "pods")
    assert job.status()["phase"] != "Training"
    run(job.kubernetes.api, job.pod("head"))
    job.wait_phase("Training")
