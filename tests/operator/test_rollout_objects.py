"""What the pods of rollouts and their gangs say, and what is read of them."""

import pytest
from builders import job as job_with
from planner_bench import SITE, START

from dapo_core.naming import MAX_JOB_NAME, MAX_LABEL, child_name, host_name
from dapo_operator.jobs.builders.gang_request import reservation
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.observed import pod_of
from dapo_operator.kube.objects import timestamp


def test_spot_rollouts_have_a_priority_of_their_own() -> None:
    rollout = {"priorityClassName": "spot", "podTemplate": {"spec": {"tolerations": [{"key": "spot"}]}}}
    job = job_with(
        topology={"mode": "Separated", "rollout": rollout},
        runPolicy={"priorityClassName": "high", "gracePeriodSeconds": 5},
    )
    made = {role: pod(job, "u", "r", role, 1, 0, SITE)["spec"] for role in ("head", "trainer", "rollout")}
    assert [made[role]["priorityClassName"] for role in made] == ["high", "high", "spot"]
    assert {"key": "spot"} in made["rollout"]["tolerations"] and {"key": "spot"} not in made["trainer"]["tolerations"]


@pytest.mark.parametrize("scheduler", ["volcano", "coscheduling"])
def test_a_gang_is_what_the_attempt_needs_to_start(scheduler: str) -> None:
    topology = {"mode": "Separated", "rollout": {"replicas": 8, "minReplicas": 3, "gpusPerPod": 4}}
    group = reservation(job_with(topology=topology, runPolicy={"gang": {"scheduler": scheduler}}), "u", 1, SITE)
    assert group is not None
    assert (group["spec"]["minMember"], group["spec"]["minResources"]["nvidia.com/gpu"]) == (5, "13")


def test_names_of_later_lives() -> None:
    name = "j" * MAX_JOB_NAME
    made = pod(job_with(topology={"mode": "Separated"}), "u", "r", "rollout", 1, 0, SITE, life=3)
    assert made["metadata"]["name"] == made["spec"]["hostname"] == "first-rollout-1-0-3"
    assert made["metadata"]["labels"]["dapo.io/life"] == "3"
    assert (seen := pod_of(made)) is not None and (seen.index, seen.life) == (0, 3)
    assert child_name(name, "rollout", 9999, 999, 123).endswith("-999-123")
    assert len(host_name(name, "rollout", 9999, 999, 123)) <= MAX_LABEL


def test_the_times_of_a_pod_are_read() -> None:
    raw = pod(job_with(topology={"mode": "Separated"}), "u", "r", "rollout", 1, 0, SITE)
    ended = {"exitCode": 1, "finishedAt": timestamp(START)}
    raw["status"] = {"phase": "Failed", "containerStatuses": [{"name": "dapo", "state": {"terminated": ended}}]}
    assert (seen := pod_of(raw)) is not None and seen.ended_at == START
