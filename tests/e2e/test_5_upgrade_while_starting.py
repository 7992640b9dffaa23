"""A platform with another tag, while a job starts and another one trains: both stay what they are."""

import json
from collections.abc import Iterator

import pytest
import yaml
from e2e_installation import JOB, NAMESPACE, OTHER_TEAM, RELEASE, ROOT, VALUES, Installation, Object

WAITING = "starting"


@pytest.fixture
def starting(platform: Installation) -> Iterator[None]:
    """A job none of whose pods finds a node."""
    job = yaml.safe_load((ROOT / "examples" / f"{JOB}.yaml").read_text())
    job["metadata"] = {"name": WAITING}
    job["spec"]["topology"]["podTemplate"] = {"spec": {"nodeSelector": {"dapo.io/no-such-label": "x"}}}
    platform.kubectl("--namespace", OTHER_TEAM, "apply", "--filename", "-", given=json.dumps(job))
    platform.wait("its pods", lambda: len(pods(platform, WAITING, OTHER_TEAM)) > 1, 120)
    yield
    platform.kubectl("--namespace", OTHER_TEAM, "delete", "dapojob", WAITING, "--timeout=300s", seconds=320)


def pods(platform: Installation, job: str, namespace: str) -> dict[str, tuple[str, str]]:
    """UID and image of each pod."""
    return {
        name: (pod["metadata"]["uid"], pod["spec"]["containers"][0]["image"])
        for name, pod in platform.pods(job, namespace).items()
    }


def deployment(platform: Installation) -> Object:
    found: Object = platform.get("deployment", f"{RELEASE}-operator", NAMESPACE)
    return found


@pytest.mark.usefixtures("starting")
def test_b12_an_upgrade_leaves_a_job_that_starts_alone(platform: Installation) -> None:
    here, there = pods(platform, WAITING, OTHER_TEAM), platform.pods()
    changed = platform.image("operator", tag="while-starting")
    # An image that no node has: a recreated pod would have it. The pod that makes the demo's data would wait for it.
    absent = {"image": "localhost/no-such:next"}
    platform.install(operator={**VALUES["operator"], "image": changed}, trainer=absent, demo={})
    assert deployment(platform)["spec"]["template"]["spec"]["containers"][0]["image"] == changed
    platform.goes_on("the upgrade")
    assert pods(platform, WAITING, OTHER_TEAM) == here
    assert set(platform.pods()) == set(there)
    platform.helm("rollback", RELEASE, "--wait", "--timeout=600s")
    platform.goes_on("the rollback")
    assert pods(platform, WAITING, OTHER_TEAM) == here
    assert set(platform.pods()) == set(there)
    assert len(platform.status(WAITING, OTHER_TEAM)["attempts"]) == 1
