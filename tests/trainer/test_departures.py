"""Whoever waits for an engine that leaves is notified, whenever it leaves."""

import threading

import pytest

from dapo_trainer.rollouts.departures import Departures, MovedResponses


def test_those_who_wait_are_told_when_the_engine_leaves() -> None:
    departures, told = Departures(), list[str]()
    with departures.told("a", lambda: told.append("a")), departures.told("b", lambda: told.append("b")):
        departures.announce("a")
        assert told == ["a"]
    departures.announce("b")
    assert told == ["a"], "nobody waits any more"


def test_who_asks_an_engine_that_has_left_is_told_at_once() -> None:
    departures, told = Departures(), list[str]()
    departures.announce("a")
    with departures.told("a", lambda: told.append("a")):
        assert told == ["a"]


@pytest.mark.parametrize("leaves", [True, False], ids=["it left", "it hands over"])
def test_what_is_unfinished_goes_on_elsewhere(leaves: bool) -> None:
    departures = Departures()
    assert not departures.is_leaving("a")
    if leaves:
        departures.announce("a")
    else:
        departures.hand_over(["a"])
    assert departures.is_leaving("a") and departures.has_left("a") == leaves
    assert not departures.is_leaving("b")


def test_a_pod_waits_until_its_engines_have_answered() -> None:
    departures, asked, answered = Departures(), threading.Event(), threading.Event()

    def request() -> None:
        with departures.told("a", lambda: None):
            asked.set()
            answered.wait()

    thread = threading.Thread(target=request)
    thread.start()
    asked.wait()
    assert not departures.wait_for_answers(["a", "b"], 0.0)
    answered.set()
    assert departures.wait_for_answers(["a", "b"], 60.0)
    thread.join()


def test_moved_responses_are_counted_by_what_they_begin_with() -> None:
    moved = MovedResponses()
    moved.add([0, 3, 5])
    moved.add([0])
    assert moved.taken() == (2, 2)
    assert moved.taken() == (0, 0)
