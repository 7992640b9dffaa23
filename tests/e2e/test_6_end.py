"""The job that went through all of it ends with a whole record; then it goes, and the platform after it."""

import pytest
from e2e_installation import JOB, NAMESPACE, RELEASE, TEAM, Installation

from dapo_core.db import open_reader

pytestmark = pytest.mark.main_story


STEPS_TO_THE_END, FEWEST_STEPS = 15, 40  # after the newest checkpoint; in all, for the accuracy to show


def test_a_pod_that_has_to_go_costs_no_step(platform: Installation) -> None:
    """It is deleted with its time to end: the driver saves, and the next attempt begins where this one ended. A change
    of the steps counts from that attempt on."""
    attempt, checkpoint = platform.attempt(), platform.status()["checkpoint"]["step"]
    platform.patch({"schedule": {"steps": max(checkpoint + STEPS_TO_THE_END, FEWEST_STEPS)}})
    platform.kubectl("--namespace", TEAM, "delete", "pod", platform.pod_of("trainer"), "--wait=false")
    platform.wait("the next attempt", lambda: platform.attempt() == attempt + 1, 120)
    platform.goes_on("a trainer pod had to go")
    with platform.stores() as secret:
        ended, begun = open_reader(secret["DAPO_METADATA_URL"]).attempts(platform.status()["runId"])[-2:]
    assert ended.step_to == begun.step_from and not ended.counted, (ended, begun)


def test_it_ends_with_a_whole_record(platform: Installation) -> None:
    def ended() -> str | None:
        held = [each for each in platform.status()["conditions"] if each["status"] == "True"]
        return next((each["type"] for each in held if each["type"] in ("Succeeded", "Failed")), None)

    assert platform.wait("the end", ended, 1800) == "Succeeded", platform.status()
    platform.wait("every pod ends with 0", lambda: exit_codes(platform) == [0] * 4, 60)
    run, steps = platform.status()["runId"], platform.get("dapojob", JOB)["spec"]["schedule"]["steps"]
    with platform.stores() as secret:
        reader = open_reader(secret["DAPO_METADATA_URL"])
        for metric in ("critic/score/mean", "response_length/mean", "actor/entropy"):
            assert [point.step for point in reader.curve(run, metric)] == list(range(1, steps + 1)), metric
        accuracy = [point.value for point in reader.curve(run, "val-core/arithmetic/acc/mean@8")]
        attempts = reader.attempts(run)
    assert accuracy[-1] is not None and accuracy[0] is not None and accuracy[-1] > accuracy[0] + 0.2, accuracy
    assert [each.attempt for each in attempts] == list(range(1, len(attempts) + 1))


def exit_codes(platform: Installation) -> list[int | None]:
    """Of the job's pods, which are kept for their logs; None for one that still runs."""
    states = [pod["status"]["containerStatuses"][0]["state"] for pod in platform.pods().values()]
    return [state.get("terminated", {}).get("exitCode") for state in states]


def test_a_deleted_job_leaves_data_only(platform: Installation) -> None:
    platform.kubectl("--namespace", TEAM, "delete", "dapojob", JOB, "--timeout=300s", seconds=320)
    for kind in ("pods", "services", "configmaps", "secrets", "networkpolicies", "poddisruptionbudgets"):
        left = platform.get(kind, namespace=TEAM, labels=f"dapo.io/job={JOB}")["items"]
        assert left == [], kind


def test_uninstall_leaves_data(platform: Installation) -> None:
    platform.helm("uninstall", RELEASE, "--wait", "--timeout=300s")
    platform.wait("no pods", lambda: not platform.get("pods", namespace=NAMESPACE)["items"], 120)
    claims = platform.get("persistentvolumeclaims", namespace=NAMESPACE)["items"]
    assert {each["metadata"]["name"] for each in claims} == {"data-dapo-postgres-0", "data-dapo-minio-0"}
    assert platform.secret("dapo-credentials", NAMESPACE)
    assert "dapojobs.dapo.io" in platform.kubectl("get", "customresourcedefinitions", "--output=name")
