"""A run that was scaled keeps what it was created with, also when another version of the platform takes over."""

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from fake_kube import FakeKube
from planner_bench import Bench, raw_job
from platform_upgrade import NAMED, crashed, images, newer_defaults, upgraded, work_until_created
from simulated_operator import Operator, asyncio_run

from dapo_core.jobspec.presets import merged
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.kube.objects import PODS


def scale(kube: FakeKube, replicas: int) -> None:
    """`kubectl scale`, or an autoscaler."""
    [raw] = kube.of_kind("DAPOJob")
    kube.update(raw, spec=merged(raw["spec"], {"topology": {"rollout": {"replicas": replicas}}}))


def with_job_of_two_rollouts() -> FakeKube:
    """A job with a trainer and two rollouts, of attempt 1."""
    kube = FakeKube(1, 1_800_000_000.0)
    topology = {"mode": "Separated", "rollout": {"replicas": 2}}
    asyncio_run(kube.create(JOBS, raw_job(topology=topology, **NAMED) | {"status": {}}))
    work_until_created(kube, Operator(kube), attempt=1, pods=4)
    return kube


def lose_all_pods(kube: FakeKube) -> None:
    """All at once, without a word."""
    for pod in kube.of_kind("Pod"):
        kube.remove((PODS.plural, "team", pod["metadata"]["name"]))


def lose_the_attempt(kube: FakeKube, operator: Operator) -> None:
    """It trains, and then its pods disappear: another one follows."""
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for pod in kube.of_kind("Pod"):
        kube.update(pod, status=ready | {"containerStatuses": [{"name": "dapo", "ready": True}]})
    operator.pass_time(5)
    operator.pass_time(5)
    lose_all_pods(kube)


def read_by_pods(kube: FakeKube) -> list[tuple[str, dict[str, Any]]]:
    """What pods run and read: by image and job file, with the rollouts that it has."""
    files = {raw["metadata"]["name"]: json.loads(raw["data"]["job.json"]) for raw in kube.of_kind("ConfigMap")}
    found = []
    for pod in kube.of_kind("Pod"):
        [name] = {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
        [image] = {container["image"] for container in pod["spec"]["containers"]}
        policy, topology = (files[name]["spec"][group] for group in ("runPolicy", "topology"))
        found.append((image, {"grace": policy["gracePeriodSeconds"], "rollouts": topology["rollout"]["replicas"]}))
    return found


@pytest.mark.parametrize("upgraded", [False, True], ids=["another image", "other defaults, too"])
@pytest.mark.parametrize("replicas", [1, 3], ids=["down", "up"])
def test_d8_a_job_that_was_scaled_keeps_its_images_and_defaults(replicas: int, upgraded: bool) -> None:
    """The driver of the next attempt waits for as many rollouts as its job file has, and no more."""
    kube = with_job_of_two_rollouts()
    [(image, before)] = {image: read for image, read in read_by_pods(kube)}.items()
    with newer_defaults() if upgraded else nullcontext():
        operator = Operator(kube, image="t2")
        scale(kube, replicas)
        lose_the_attempt(kube, operator)
        work_until_created(kube, operator, attempt=2, pods=2 + replicas)
        assert read_by_pods(kube) == [(image, before | {"rollouts": replicas})] * (2 + replicas)
        scale(kube, 2)
        lose_the_attempt(kube, operator)
        work_until_created(kube, operator, attempt=3, pods=4)
        assert read_by_pods(kube) == [(image, before)] * 4
    assert "JobFileLost" not in operator.events.reasons


def test_d8_a_scaled_job_survives_an_operator_that_died_before_the_job_file_was_written() -> None:
    kube = with_job_of_two_rollouts()
    with newer_defaults():
        operator = Operator(kube, image="t2")
        scale(kube, 3)
        lose_the_attempt(kube, operator)
        work_until_created(kube, operator, attempt=2, pods=5)
        expected = read_by_pods(kube)
        lose_all_pods(kube)
        [pinned] = [raw["status"]["pinned"] for raw in kube.of_kind("DAPOJob")]
        kube.remove(("configmaps", "team", f"first-job-{pinned['revision']}"))
        restarted = Operator(kube, image="t3")
        work_until_created(kube, restarted, attempt=2, pods=5)
        assert read_by_pods(kube) == expected
        assert "JobFileLost" not in restarted.events.reasons


def test_d8_an_edit_besides_the_scale_takes_over_what_the_platform_has() -> None:
    bench = upgraded(Bench().training())
    bench.edit(topology={"rollout": {"replicas": 3}}, optimizer={"learningRate": 1e-5})
    assert images(crashed(bench)) == {"trainer:2"}


def test_d8_a_run_that_an_earlier_version_pinned_may_be_scaled_once_it_was_looked_at() -> None:
    bench = Bench(raw_job(topology={"mode": "Separated", "rollout": {"replicas": 2}})).training()
    assert bench.status.pinned is not None
    earlier = bench.status.pinned.model_copy(update={"spec": bench.job.said_earlier})
    bench.status = bench.status.model_copy(update={"pinned": earlier})
    upgraded(bench).settle().edit(topology={"rollout": {"replicas": 3}}).settle()
    assert bench.status.pinned is not None and bench.job.is_as_pinned(bench.status.pinned)


def test_d8_an_edit_before_the_job_file_was_written_does_not_wait_for_that_file() -> None:
    """The operator died between recording the attempt and creating what it needs; then somebody scaled the job."""
    bench = Bench(raw_job(topology={"mode": "Separated", "rollout": {"replicas": 2}}))
    bench.settle()
    bench.pods.clear()
    bench.seen = replace(bench.seen, support={})
    bench.edit(topology={"rollout": {"replicas": 3}}).settle()
    bench.settle(60)
    assert bench.attempts == [(1, "SpecChanged"), (2, None)] and bench.status.restarts_counted in (None, 0)
    [name] = {name for kind, name in bench.seen.support if kind == "ConfigMap"}
    assert name == f"first-job-{bench.job.revision}"
    assert len(bench.pods) == 5
