"""A new version of the platform: other defaults, another image, other pods. Nothing that runs, starts or waits ends."""

from dataclasses import replace
from typing import Any

import pytest
from fake_kube import FakeKube
from planner_bench import UID, Bench, raw_job
from platform_upgrade import NAMED, NEW, crashed, images, newer_defaults, upgraded, work_until_created
from simulated_operator import Operator, asyncio_run

from dapo_core.run.status import DAPOJobStatus
from dapo_operator.jobs.actions import ApplySupport, CreatePod, CreateToken
from dapo_operator.jobs.dapojob import JOBS, job_of
from dapo_operator.jobs.job_objects import Site
from dapo_operator.jobs.revision import KeptFile
from dapo_operator.kube.objects import PODS


def recorded_as(bench: Bench, **fields: Any) -> Bench:
    newest = bench.status.attempts[-1].model_copy(update=fields)
    bench.status = bench.status.model_copy(update={"attempts": [*bench.status.attempts[:-1], newest]})
    return bench


@pytest.mark.parametrize("gang", ["none", "volcano"])
def test_b12_attempts_that_start_or_wait_are_left_alone(gang: str) -> None:
    bench = Bench(raw_job(runPolicy={"gang": {"scheduler": gang}})).settle()
    names, writes = bench.names, bench.writes
    assert upgraded(bench).settle(60).names == names
    assert (bench.attempts, bench.writes) == ([(1, None)], writes), "nor is anything written"
    bench.run_all().settle(1)
    assert bench.status.phase == "Training"


def test_b12_a_running_attempt_is_not_said_to_be_edited() -> None:
    bench = Bench().training()
    writes = bench.writes
    upgraded(bench).settle(60)
    assert bench.writes == writes and bench.says("SpecAccepted") == ("True", "SpecAccepted")


@pytest.mark.parametrize("ready", [False, True], ids=["starting", "training"])
def test_b12_an_attempt_of_a_version_that_recorded_another_digest_is_left_alone(ready: bool) -> None:
    bench = Bench().training() if ready else Bench().settle()
    recorded_as(bench, shape="0123456789ab", driver_spec=None)
    assert upgraded(bench).settle(60).attempts == [(1, None)]
    newest = bench.status.attempts[-1]
    assert (newest.shape, newest.driver_spec) == (bench.job.shape, bench.job.driver_spec), "an edit is noticed again"
    bench.edit(topology={"trainer": {"replicas": 2}}).settle()
    expected = ("True", "AppliesAtNextAttempt") if ready else ("True", "SpecAccepted")
    assert bench.says("SpecAccepted") == expected
    assert bench.attempts == ([(1, None)] if ready else [(1, "SpecChanged"), (2, None)])


def test_b12_defaults_of_a_newer_version_are_no_edit() -> None:
    before = job_of(raw_job(**NAMED), Site(image="t"))
    with newer_defaults():
        after = job_of(raw_job(**NAMED), Site(image="t"))
        assert after.spec.run_policy.grace_period_seconds == 7
        assert after.revision != before.revision
    assert (before.shape, before.driver_spec) == (after.shape, after.driver_spec)
    assert before.said == after.said


@pytest.mark.parametrize("edit", [{}, {"topology": {"trainer": {"replicas": 2}}}], ids=["upgraded", "edited"])
def test_b13_a_network_policy_that_was_deleted_comes_back(edit: dict[str, Any]) -> None:
    bench = upgraded(Bench().training()).settle(60)
    if edit:
        bench.edit(**edit).settle()
    lacking = {key: digest for key, digest in bench.seen.support.items() if key[0] != "NetworkPolicy"}
    bench.seen = replace(bench.seen, support=lacking)
    bench.settle(1)
    assert ("NetworkPolicy", "first") in bench.seen.support
    assert bench.attempts == [(1, None)]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"checkpoints": {"keepLast": 3}}, "AppliesAtNextAttempt"),
        ({"optimizer": {"learningRate": 1e-5}}, "AppliesAtNextAttempt"),
        ({"runPolicy": {"maxRestarts": 9}}, "SpecAccepted"),
        ({"guards": []}, "SpecAccepted"),
    ],
    ids=["checkpoints", "optimizer", "limits", "guards"],
)
def test_b16_an_edit_that_the_driver_has_not_read_is_said_to_apply_later(edit: dict[str, Any], expected: str) -> None:
    bench = Bench().training().edit(**edit).settle()
    assert bench.says("SpecAccepted") == ("True", expected)
    bench.finish("first-head-1-0", 1).settle(60)
    bench.settle(60)
    bench.run_all().settle(1)
    assert bench.attempts[-1] == (2, None) and bench.says("SpecAccepted") == ("True", "SpecAccepted")


def test_b16_an_edit_before_any_pod_has_a_node_applies_at_once() -> None:
    bench = Bench().settle().edit(schedule={"steps": 300}).settle()
    assert bench.says("SpecAccepted") == ("True", "SpecAccepted") and bench.status.attempts[-1].steps == 300
    assert bench.attempts == [(1, "SpecChanged"), (2, None)], "its pods have the old job file"
    bench.change_all(scheduled=True).edit(schedule={"steps": 400}).settle()
    assert bench.says("SpecAccepted") == ("True", "AppliesAtNextAttempt")
    assert bench.status.attempts[-1].steps == 300


def test_statuses_of_earlier_versions_are_read() -> None:
    old = {"attempts": [{"number": 1, "startedAt": "2026-01-01T00:00:00Z", "shape": "0123456789ab"}]}
    assert DAPOJobStatus.model_validate(old).attempts[0].driver_spec is None


def job_files(bench: Bench) -> list[str]:
    """The job files that the next plan writes."""
    applied = (action.body for action in bench.look().actions if isinstance(action, ApplySupport))
    return [body["data"]["job.json"] for body in applied if body["kind"] == "ConfigMap"]


def file_names(bench: Bench) -> set[str]:
    """Names of the job files that the pods of the next plan read."""
    pods = [action.body for action in bench.look().actions if isinstance(action, CreatePod)]
    volumes = [volume for body in pods for volume in body["spec"]["volumes"] if volume["name"] == "dapo-job"]
    return {volume["configMap"]["name"] for volume in volumes}


def test_b13_a_run_keeps_its_image_and_its_job_file() -> None:
    bench = crashed(upgraded(Bench().training()))
    assert bench.look().status.attempts[-1].number == 2
    assert (images(bench), job_files(bench)) == ({"trainer:1"}, [])


def test_b13_an_edit_takes_over_the_platforms_image_and_job_file() -> None:
    bench = upgraded(Bench().training()).edit(optimizer={"learningRate": 1e-5})
    crashed(bench)
    assert images(bench) == {"trainer:2"} and len(job_files(bench)) == 1


def test_b13_a_suspended_run_keeps_them_too() -> None:
    bench = upgraded(Bench().training().edit(suspend=True).settle()).edit(suspend=False)
    bench.step()
    assert (bench.status.pinned and bench.status.pinned.image) == "trainer:1"
    assert bench.attempts[-1][0] == 2


def test_b13_a_starting_attempt_keeps_its_job_file() -> None:
    """Its pods have the image of before, which may not know a field of the newer platform."""
    bench = upgraded(Bench().settle())
    assert job_files(bench) == []


def test_b13_a_run_of_an_earlier_version_takes_over_the_platforms_image_once() -> None:
    bench = Bench().training()
    bench.status = bench.status.model_copy(update={"pinned": None})
    crashed(upgraded(bench))
    assert images(bench) == {"trainer:2"}


def test_b13_a_limit_that_is_raised_takes_over_nothing() -> None:
    bench = upgraded(Bench(raw_job(runPolicy={"maxRestarts": 0})).training())
    bench.finish("first-head-1-0", 1).settle().edit(runPolicy={"maxRestarts": 3})
    bench.step()
    assert (images(bench), job_files(bench)) == ({"trainer:1"}, [])


DIGEST = f"sha256:{'0' * 64}"


def run_as(bench: Bench, image: str, digest: str) -> Bench:
    """The nodes run this digest of the image."""
    return bench.change_all(image=image, image_by_digest=f"{image.partition(':')[0]}@{digest}")


def test_d8_later_attempts_run_the_digest_of_the_first() -> None:
    bench = run_as(Bench().settle(), "trainer:1", DIGEST).training()
    assert bench.status.pinned is not None and bench.status.pinned.images == {"trainer:1": f"trainer@{DIGEST}"}
    crashed(bench)
    assert images(bench) == {f"trainer@{DIGEST}"}
    bench.settle()
    run_as(bench, "trainer:1", f"sha256:{'1' * 64}").run_all().settle(1)
    bench.finish("first-head-2-0", 1).settle()
    bench.now += 600
    assert images(bench) == {f"trainer@{DIGEST}"}, "whatever the tag is by now"


def test_d8_an_image_of_a_template_is_kept_too_and_an_edit_resolves_it_anew() -> None:
    template = {"spec": {"containers": [{"name": "dapo", "image": "own:latest"}]}}
    bench = Bench(raw_job(topology={"trainer": {"podTemplate": template}})).settle()
    bench.change("first-trainer-1-0", image="own:latest", image_by_digest=f"own@{DIGEST}").training()
    assert images(crashed(bench)) == {"trainer:1", f"own@{DIGEST}"}
    bench.edit(optimizer={"learningRate": 1e-5})
    assert images(bench) == {"trainer:1", "own:latest"}


def test_d8_an_attempt_that_starts_under_a_new_operator_keeps_its_revision() -> None:
    bench = Bench().settle()
    name = next(name for kind, name in bench.seen.support if kind == "ConfigMap")
    bench.pods.pop("first-trainer-1-0")
    assert file_names(upgraded(bench)) == {name} and images(bench) == {"trainer:1"}


def test_d8_a_run_that_an_earlier_version_began_keeps_its_job_file_and_its_token() -> None:
    bench = Bench().training()
    assert bench.status.pinned is not None
    bench.status = bench.status.model_copy(update={"pinned": bench.status.pinned.model_copy(update={"revision": None})})
    bench.seen = replace(bench.seen, support={**bench.seen.support, ("ConfigMap", "first-job"): "earlier"})
    crashed(bench)
    assert (file_names(bench), job_files(bench)) == ({"first-job"}, [])
    bench.edit(optimizer={"learningRate": 1e-5})
    tokens = [action.body["metadata"]["name"] for action in bench.look().actions if isinstance(action, CreateToken)]
    assert tokens == [f"first-ray-{UID}"], "under its new name, although attempt 1 was ready"
    assert file_names(bench) == {f"first-job-{bench.job.revision}"} and len(job_files(bench)) == 1


def test_d8_a_limit_is_no_part_of_a_revision_and_everything_else_is() -> None:
    before = job_of(raw_job(), NEW).revision
    for edit, same in (
        ({"runPolicy": {"maxRestarts": 9}}, True),
        ({"guards": []}, True),
        ({"suspend": True}, True),
        ({"optimizer": {"learningRate": 1e-5}}, False),
        ({"topology": {"trainer": {"replicas": 2}}}, False),
        ({"runPolicy": {"gracePeriodSeconds": 9}}, False),
    ):
        assert (job_of(raw_job(**edit), NEW).revision == before) == same, edit


def test_d8_limits_of_a_run_with_an_older_job_file_are_those_of_the_spec() -> None:
    file = job_of(raw_job(schedule={"steps": 7}, runPolicy={"maxRestarts": 1}, guards=[]), NEW)
    job = job_of(raw_job(runPolicy={"maxRestarts": 9}), NEW)
    assert file.parsed is not None
    kept = job.keeping(KeptFile("0123", "4567", b""), file.parsed)
    assert (kept.revision, kept.spec.schedule.steps, kept.spec.run_policy.max_restarts) == ("4567", 7, 9)
    assert kept.spec.guards == job.spec.guards != file.spec.guards


def test_d8_a_newer_operator_reads_the_defaults_of_the_run_in_its_job_file() -> None:
    kube = FakeKube(1, 1_800_000_000.0)
    asyncio_run(kube.create(JOBS, raw_job(topology={"mode": "Separated"}, **NAMED) | {"status": {}}))
    work_until_created(kube, Operator(kube), attempt=1)
    grace = graces(kube)
    with newer_defaults():
        newer = Operator(kube, image="t2")
        for pod in kube.of_kind("Pod"):
            kube.remove((PODS.plural, "team", pod["metadata"]["name"]))
        work_until_created(kube, newer, attempt=1)
        assert graces(kube) == grace, "as before"
        assert len(kube.of_kind("ConfigMap")) == 1 and "JobFileLost" not in newer.events.reasons


def test_d8_a_newer_operator_without_the_job_file_says_that_it_takes_its_own_defaults() -> None:
    kube = FakeKube(1, 1_800_000_000.0)
    asyncio_run(kube.create(JOBS, raw_job(topology={"mode": "Separated"}, **NAMED) | {"status": {}}))
    work_until_created(kube, Operator(kube), attempt=1)
    grace = graces(kube)
    with newer_defaults():
        for raw in (*kube.of_kind("Pod"), *kube.of_kind("ConfigMap")):
            kube.remove((f"{raw['kind'].lower()}s", "team", raw["metadata"]["name"]))
        newer = Operator(kube, image="t2")
        work_until_created(kube, newer, attempt=2)
        assert graces(kube) != grace
        assert len(kube.of_kind("ConfigMap")) == 1 and newer.events.reasons.count("JobFileLost") == 1


def graces(kube: FakeKube) -> set[int]:
    return {pod["spec"]["terminationGracePeriodSeconds"] for pod in kube.of_kind("Pod")}


def test_d8_a_lost_job_file_is_replaced_with_the_next_attempt() -> None:
    """The platform has other defaults by now, so its file of this revision cannot be written again."""
    bench = Bench().training()
    assert bench.status.pinned is not None
    earlier = bench.status.pinned.model_copy(update={"revision": "earlier"})
    bench.status = bench.status.model_copy(update={"pinned": earlier})
    bench.seen = replace(bench.seen, support={k: v for k, v in bench.seen.support.items() if k[0] != "ConfigMap"})
    assert job_files(bench) == [], "not under the name of another revision"
    assert file_names(crashed(bench)) == {f"first-job-{bench.job.revision}"} and len(job_files(bench)) == 1
