"""The cache of children: changes in any order, responses that overtake the watch, and deletions that it missed."""

from typing import Any

import pytest

from dapo_operator.children import Children

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
def children(woken: list[tuple[str, str]]) -> Children:
    return Children(woken.append)


def phases(children: Children) -> list[str]:
    return [seen.phase for seen in children.pods_of(KEY, "job-1")]


def test_old_news_changes_nothing(children: Children, woken: list[tuple[str, str]]) -> None:
    children.pods.put(pod(version=7, phase="Running"))
    children.pods.put(pod(version=6, phase="Pending"))
    assert phases(children) == ["Running"]
    assert woken == [KEY]


def test_news_without_a_difference_wakes_nobody(children: Children, woken: list[tuple[str, str]]) -> None:
    children.pods.put(pod(version=7))
    children.pods.put(pod(version=8))
    assert woken == [KEY]


def test_an_answer_that_comes_after_the_end_brings_nothing_back(children: Children) -> None:
    children.pods.drop(pod(version=9))
    children.pods.put(pod(version=5))
    assert phases(children) == []


def test_the_end_of_an_old_pod_does_not_touch_the_new_one_of_its_name(children: Children) -> None:
    children.pods.put(pod(uid="u2", version=10))
    children.pods.drop(pod(uid="u1", version=11))
    assert phases(children) == ["Pending"]


def test_a_list_tells_what_is_gone(children: Children, woken: list[tuple[str, str]]) -> None:
    children.pods.put(pod(version=5))
    children.pods.keep(set(), None, "8")
    assert phases(children) == []
    assert woken == [KEY, KEY]


def test_a_list_that_began_earlier_does_not_remove_what_was_made_since(children: Children) -> None:
    children.pods.put(pod(version=9))
    children.pods.keep(set(), None, "8")
    assert phases(children) == ["Pending"]


def test_a_list_of_one_namespace_says_nothing_of_others(children: Children) -> None:
    children.pods.put(pod(version=5))
    children.pods.keep(set(), "other", "8")
    assert phases(children) == ["Pending"]


def test_another_owners_pod_is_seen_as_such(children: Children) -> None:
    children.pods.put(pod())
    assert [seen.owned for seen in children.pods_of(KEY, "job-2")] == [False]


def test_support_counts_only_for_its_owner(children: Children) -> None:
    service = pod()
    service["metadata"]["annotations"] = {"dapo.io/digest": "abc"}
    children.support("Service").put(service)
    assert children.support_of(KEY, "job-1") == {("Service", "first-head-1-0"): "abc"}
    assert children.support_of(KEY, "job-2") == {}


def ended(**fields: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 137}}
    return pod(**fields) | {"status": {"phase": "Failed", "containerStatuses": [{"name": "dapo", "state": state}]}}


def test_the_last_state_of_a_pod_that_is_gone_is_kept(children: Children) -> None:
    children.pods.put(pod(version=5))
    children.pods.drop(ended(version=6))
    assert phases(children) == []
    assert [(seen.exit_code, seen.deleting) for seen in children.gone_of(KEY, "job-1")] == [(137, True)]
    assert children.gone_of(KEY, "job-2") == ()
    children.forget(KEY)
    assert children.gone_of(KEY, "job-1") == ()


def test_a_pod_that_a_list_misses_ended_as_it_was_seen_last(children: Children) -> None:
    children.pods.put(ended(version=5))
    children.pods.keep(set(), None, "8")
    assert [seen.exit_code for seen in children.gone_of(KEY, "job-1")] == [137]


@pytest.mark.parametrize(
    ("role", "known"),
    [
        pytest.param("head", [], id="nobody can say why"),
        pytest.param("trainer", [], id="nor here"),
        pytest.param("rollout", ["first-rollout-1-0"], id="a name that was there is not to come back"),
    ],
)
def test_a_pod_that_ran_when_it_went(children: Children, role: str, known: list[str]) -> None:
    ran = pod(f"first-{role}-1-0", phase="Running")
    ran["metadata"]["labels"]["dapo.io/role"] = role
    children.pods.put(ran)
    children.pods.drop(ran)
    assert [gone.name for gone in children.gone_of(KEY, "job-1")] == known


def pod_group(attempt: int) -> dict[str, Any]:
    made = pod(name=f"first-{attempt}", uid=f"group-{attempt}")
    made["metadata"]["labels"] = {"dapo.io/job": "first", "dapo.io/attempt": str(attempt)}
    return made


def test_b29_reservations_of_deleted_jobs_are_forgotten(children: Children) -> None:
    """Also those that no watch reports as deleted, since it is not permitted."""
    for attempt in (1, 2):
        children.reservations["volcano"].put(pod_group(attempt))
    children.reservations["kueue"].put(pod_group(3))
    found = {(each.scheduler, each.attempt) for each in children.reservations_of(KEY, "job-1")}
    assert found == {("volcano", 1), ("volcano", 2), ("kueue", 3)}
    assert children.reservations_of(KEY, "another job of this name") == ()
    children.forget(KEY)
    assert children.reservations_of(KEY, "job-1") == ()
