"""What is known of children: news in any order, answers that overtake the watch, and deletions nobody told of."""

from typing import Any

import pytest

from dapo_operator.kube.cache import World

KEY = ("team", "first")


def pod(name: str = "first-head-1-0", uid: str = "u1", version: int = 5, phase: str = "Pending") -> dict[str, Any]:
    labels = {"dapo.io/job": "first", "dapo.io/role": "head", "dapo.io/attempt": "1", "dapo.io/index": "0"}
    owner = {"uid": "job-1", "controller": True}
    meta = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"metadata": {**meta, "ownerReferences": [owner]}, "status": {"phase": phase}}


@pytest.fixture
def woken() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def world(woken: list[tuple[str, str]]) -> World:
    return World(woken.append)


def phases(world: World) -> list[str]:
    return [seen.phase for seen in world.pods_of(KEY, "job-1")]


def test_old_news_changes_nothing(world: World, woken: list[tuple[str, str]]) -> None:
    world.pods.put(pod(version=7, phase="Running"))
    world.pods.put(pod(version=6, phase="Pending"))
    assert phases(world) == ["Running"]
    assert woken == [KEY]


def test_news_without_a_difference_wakes_nobody(world: World, woken: list[tuple[str, str]]) -> None:
    world.pods.put(pod(version=7))
    world.pods.put(pod(version=8))
    assert woken == [KEY]


def test_an_answer_that_comes_after_the_end_brings_nothing_back(world: World) -> None:
    world.pods.drop(pod(version=9))
    world.pods.put(pod(version=5))
    assert phases(world) == []


def test_the_end_of_an_old_pod_does_not_touch_the_new_one_of_its_name(world: World) -> None:
    world.pods.put(pod(uid="u2", version=10))
    world.pods.drop(pod(uid="u1", version=11))
    assert phases(world) == ["Pending"]


def test_a_list_tells_what_is_gone(world: World, woken: list[tuple[str, str]]) -> None:
    world.pods.put(pod(version=5))
    world.pods.keep(set(), None, "8")
    assert phases(world) == []
    assert woken == [KEY, KEY]


def test_a_list_that_began_earlier_does_not_remove_what_was_made_since(world: World) -> None:
    world.pods.put(pod(version=9))
    world.pods.keep(set(), None, "8")
    assert phases(world) == ["Pending"]


def test_a_list_of_one_namespace_says_nothing_of_others(world: World) -> None:
    world.pods.put(pod(version=5))
    world.pods.keep(set(), "other", "8")
    assert phases(world) == ["Pending"]


def test_another_owners_pod_is_seen_as_such(world: World) -> None:
    world.pods.put(pod())
    assert [seen.owned for seen in world.pods_of(KEY, "job-2")] == [False]


def test_support_counts_only_for_its_owner(world: World) -> None:
    service = pod()
    service["metadata"]["annotations"] = {"dapo.io/digest": "abc"}
    world.support("Service").put(service)
    assert world.support_of(KEY, "job-1") == {("Service", "first-head-1-0"): "abc"}
    assert world.support_of(KEY, "job-2") == {}


def ended(**fields: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 137}}
    return pod(**fields) | {"status": {"phase": "Failed", "containerStatuses": [{"name": "dapo", "state": state}]}}


def test_the_last_state_of_a_pod_that_is_gone_is_kept(world: World) -> None:
    world.pods.put(pod(version=5))
    world.pods.drop(ended(version=6))
    assert phases(world) == []
    assert [(seen.exit_code, seen.deleting) for seen in world.gone_of(KEY, "job-1")] == [(137, True)]
    assert world.gone_of(KEY, "job-2") == ()
    world.forget(KEY)
    assert world.gone_of(KEY, "job-1") == ()


def test_a_pod_that_a_list_misses_ended_as_it_was_seen_last(world: World) -> None:
    world.pods.put(ended(version=5))
    world.pods.keep(set(), None, "8")
    assert [seen.exit_code for seen in world.gone_of(KEY, "job-1")] == [137]


def test_a_pod_that_ran_when_it_went_says_nothing(world: World) -> None:
    world.pods.put(pod(version=5, phase="Running"))
    world.pods.drop(pod(version=6, phase="Running"))
    assert world.gone_of(KEY, "job-1") == ()
