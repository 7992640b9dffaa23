"""A changed image while a job runs, back again, and away."""

from e2e_installation import JOB, NAMESPACE, RELEASE, TEAM, Installation


def test_upgrade_and_rollback_leave_a_running_job_alone(platform: Installation) -> None:
    platform.kubectl("--namespace", TEAM, "delete", "dapojob", JOB, "--ignore-not-found", "--timeout=180s", seconds=200)
    platform.wait("nothing left of the job", lambda: not platform.pods(), 120)
    platform.submit()
    platform.wait("a step", platform.step, 900)
    before = {name: pod["metadata"]["uid"] for name, pod in platform.pods().items()}
    first = operator_images(platform)
    changed = platform.image("operator", tag="next")
    platform.install(operator={"image": changed})
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


def test_a_deleted_job_leaves_data_only(platform: Installation) -> None:
    platform.kubectl("--namespace", TEAM, "delete", "dapojob", JOB, "--timeout=300s", seconds=320)
    for kind in ("pods", "services", "configmaps", "secrets", "networkpolicies", "poddisruptionbudgets"):
        left = platform.get(kind, namespace=TEAM, labels=f"dapo.io/job={JOB}")["items"]
        assert left == [], kind


def test_uninstall_leaves_data(platform: Installation) -> None:
    platform.helm("uninstall", RELEASE, "--wait", "--timeout=300s")
    assert platform.get("pods", namespace=NAMESPACE)["items"] == []
    claims = platform.get("persistentvolumeclaims", namespace=NAMESPACE)["items"]
    assert {each["metadata"]["name"] for each in claims} == {"data-dapo-postgres-0", "data-dapo-minio-0"}
    assert platform.secret("dapo-credentials", NAMESPACE)
    assert "dapojobs.dapo.io" in platform.kubectl("get", "customresourcedefinitions", "--output=name")
