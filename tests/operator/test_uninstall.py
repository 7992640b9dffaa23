"""Before the operator is removed: no job keeps its finalizer, and with the resource definition the jobs go, too."""

from collections.abc import Sequence
from typing import Any

import pytest
from fake_kube import FakeKube
from planner_bench import raw_job
from simulated_operator import asyncio_run

from dapo_operator.jobs.dapojob import FINALIZER, JOBS
from dapo_operator.kube.objects import error_of
from dapo_operator.uninstall import delete_jobs, release_jobs

EVERYWHERE: Sequence[str | None] = [None]


@pytest.fixture
def kube() -> FakeKube:
    """Three jobs: one that the operator holds, one that another controller holds too, and one that nobody holds."""
    kube = FakeKube(1, 1_800_000_000.0)
    for name, finalizers in {"held": [FINALIZER], "shared": ["example.com/a", FINALIZER], "free": []}.items():
        raw: dict[str, Any] = raw_job(name)
        raw["metadata"] |= {"finalizers": finalizers, "namespace": f"team-{name}"}
        asyncio_run(kube.create(JOBS, raw))
    return kube


def finalizers(kube: FakeKube) -> dict[str, list[str]]:
    return {raw["metadata"]["name"]: raw["metadata"].get("finalizers", []) for raw in kube.of_kind("DAPOJob")}


def test_b26_no_job_keeps_the_finalizer_and_other_finalizers_stay(kube: FakeKube) -> None:
    assert asyncio_run(release_jobs(kube, EVERYWHERE)) == 2  # type: ignore[arg-type]
    assert finalizers(kube) == {"held": [], "shared": ["example.com/a"], "free": []}


def test_b26_only_the_operators_namespaces_are_touched(kube: FakeKube) -> None:
    asyncio_run(release_jobs(kube, ["team-held", "team-free"]))  # type: ignore[arg-type]
    assert finalizers(kube)["held"] == [] and FINALIZER in finalizers(kube)["shared"]


def test_b26_a_job_that_changes_meanwhile_is_asked_for_again(kube: FakeKube) -> None:
    conflicts = [error_of(409, {"reason": "Conflict"})]

    def fault(what: str, after: bool) -> None:
        if what == "patch dapojobs" and not after and conflicts:
            raise conflicts.pop()

    kube.fault = fault
    assert asyncio_run(release_jobs(kube, EVERYWHERE)) == 2  # type: ignore[arg-type]
    assert not any(FINALIZER in held for held in finalizers(kube).values())


def test_b26_jobs_are_deleted_before_their_definition(kube: FakeKube) -> None:
    assert asyncio_run(delete_jobs(kube, EVERYWHERE, 0.0)) == 2, "no operator ends them here"  # type: ignore[arg-type]
    assert set(finalizers(kube)) == {"held", "shared"}
    asyncio_run(release_jobs(kube, EVERYWHERE))  # type: ignore[arg-type]
    assert set(finalizers(kube)) == {"shared"}, "another controller still holds it"
