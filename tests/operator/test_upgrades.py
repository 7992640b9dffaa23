"""A new version of the platform: other defaults, another image, other pods. Nothing that runs, starts or waits ends."""

from dataclasses import replace
from typing import Any

import pytest
from planner_bench import Bench, raw_job

from dapo_core.jobspec import RunPolicy
from dapo_core.run.status import DAPOJobStatus
from dapo_operator.jobs.actions import ApplySupport, CreatePod
from dapo_operator.jobs.builders.common import Site
from dapo_operator.jobs.dapojob import job_of

NEW = Site(image="trainer:2", image_pull_policy="Always", topology_key="rack")


def upgraded(bench: Bench, site: Site = NEW) -> Bench:
    """Another version of the operator takes over."""
    bench.site = site
    bench._jobs.clear()
    return bench


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


def test_b12_defaults_of_a_newer_version_are_no_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = job_of(raw_job(), Site(image="t"))
    monkeypatch.setattr(RunPolicy.model_fields["grace_period_seconds"], "default", 7)
    RunPolicy.model_rebuild(force=True)
    try:
        after = job_of(raw_job(), Site(image="t"))
    finally:
        monkeypatch.undo()
        RunPolicy.model_rebuild(force=True)
    assert (before.shape, before.driver_spec) == (after.shape, after.driver_spec)
    key = ("ConfigMap", "first-job")
    assert before.support_digests(1)[key] == after.support_digests(1)[key]


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


def test_b16_an_edit_before_any_pod_has_a_node_applies_to_this_attempt() -> None:
    bench = Bench().settle().edit(schedule={"steps": 300}).settle()
    assert bench.says("SpecAccepted") == ("True", "SpecAccepted") and bench.status.attempts[-1].steps == 300
    bench.change_all(scheduled=True).edit(schedule={"steps": 400}).settle()
    assert bench.says("SpecAccepted") == ("True", "AppliesAtNextAttempt")
    assert bench.status.attempts[-1].steps == 300


def test_statuses_of_earlier_versions_are_read() -> None:
    old = {"attempts": [{"number": 1, "startedAt": "2026-01-01T00:00:00Z", "shape": "0123456789ab"}]}
    assert DAPOJobStatus.model_validate(old).attempts[0].driver_spec is None


def images(bench: Bench) -> set[str]:
    """Those of the pods of the next plan."""
    pods = [action.body for action in bench.look().actions if isinstance(action, CreatePod)]
    return {container["image"] for body in pods for container in body["spec"]["containers"]}


def job_files(bench: Bench) -> list[str]:
    """The job files that the next plan writes."""
    applied = (action.body for action in bench.look().actions if isinstance(action, ApplySupport))
    return [body["data"]["job.json"] for body in applied if body["kind"] == "ConfigMap"]


def crashed(bench: Bench) -> Bench:
    """The attempt has crashed, and the next one is about to start."""
    bench.finish("first-head-1-0", 1).settle()
    bench.now += 60
    return bench


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
