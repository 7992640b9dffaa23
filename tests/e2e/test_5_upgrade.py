"""A changed image while the job runs, and back again."""

import pytest
from e2e_installation import NAMESPACE, RELEASE, VALUES, Installation

pytestmark = pytest.mark.main_story


def test_upgrade_and_rollback_leave_a_running_job_alone(platform: Installation) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in platform.pods().items()}
    first = operator_images(platform)
    changed = platform.image("operator", tag="next")
    platform.install(operator={**VALUES["operator"], "image": changed})
    assert operator_images(platform) == {changed}
    assert {name: pod["metadata"]["uid"] for name, pod in platform.pods().items()} == before
    platform.helm("rollback", RELEASE, "--wait", "--timeout=600s")
    assert operator_images(platform) == first
    assert {name: pod["metadata"]["uid"] for name, pod in platform.pods().items()} == before
    step = platform.step()
    platform.wait("another step", lambda: platform.step() > step, 300)


def operator_images(platform: Installation) -> set[str]:
    """Those that its Deployment names; `helm --wait` has seen pods of it ready."""
    found = platform.get("deployment", f"{RELEASE}-operator", NAMESPACE)
    return {each["image"] for each in found["spec"]["template"]["spec"]["containers"]}
