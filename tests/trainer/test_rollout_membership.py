"""Which engines a run has, as nodes come and go, engines die and weights are sent."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_trainer.rollouts.membership import (
    ASK_AFTER_SECONDS,
    FIRST_SYNC_SECONDS,
    LEAST_SYNC_SECONDS,
    START_AGAIN_SECONDS,
    WEDGED_AFTER_SECONDS,
    WINDOW_SECONDS,
    Dismiss,
    EngineState,
    Liveness,
    Lose,
    Membership,
    Start,
    SyncLimit,
)


def two_that_serve() -> Membership:
    """Engines 0 and 1, each on a node of its own, with weights."""
    members = Membership()
    members.adopt(0, "a")
    members.adopt(1, "b")
    members.synced([0, 1])
    return members


BOTH = {"a": 1, "b": 1}


def test_engines_that_verl_started_are_not_started_again() -> None:
    members = two_that_serve()
    assert members.look(BOTH, 0.0) == []
    assert members.in_state(EngineState.SERVING) == [0, 1]


def test_a_node_that_joins_gets_as_many_engines_as_fit_once() -> None:
    members = two_that_serve()
    assert members.look({**BOTH, "c": 2}, 0.0) == [Start(2, "c"), Start(3, "c")]
    assert members.look({**BOTH, "c": 2}, 1.0) == []


def test_an_engine_serves_after_it_has_weights_and_not_before() -> None:
    members = two_that_serve()
    members.look({**BOTH, "c": 1}, 0.0)
    assert members.synced([0, 1, 2]) == [], "one that is still loading receives none"
    assert members.loaded(2) and members.in_state(EngineState.LOADED) == [2]
    assert members.synced([0, 1, 2]) == [2]
    assert members.in_state(EngineState.SERVING) == [0, 1, 2]


def test_engines_leave_with_their_node() -> None:
    members = two_that_serve()
    assert members.look({"a": 1}, 0.0) == [Lose(1, "its node is gone")]
    assert members.lost(1, 0.0) is not None and members.lost(1, 0.0) is None, "an engine is lost once"
    assert members.look({"a": 1}, 1.0) == []


def test_a_dead_engine_is_started_again_under_a_new_rank_which_names_its_actors() -> None:
    members = two_that_serve()
    members.lost(1, 5.0)
    assert members.look(BOTH, 5.0) == [Start(2, "b")]


def test_a_node_whose_engines_die_again_and_again_waits_and_is_dismissed() -> None:
    members, now = two_that_serve(), 0.0
    members.lost(1, now)
    for pause in START_AGAIN_SECONDS:
        if pause:
            assert members.look(BOTH, now + pause - 0.1) == []
        now += pause
        [start] = members.look(BOTH, now)
        assert isinstance(start, Start)
        members.lost(start.rank, now)
    assert members.look(BOTH, now) == [Dismiss("b")]
    assert members.look(BOTH, now + 1000) == [], "it is dismissed once, and gets no engine again"
    members.look({"a": 1}, now)
    assert members.look(BOTH, now + 2 * WINDOW_SECONDS) == [Start(members.next_rank - 1, "b")], "another of that id"


def test_losses_of_long_ago_do_not_count() -> None:
    members = two_that_serve()
    for number in range(10):
        now = number * (WINDOW_SECONDS + 1)
        [rank] = [rank for rank, engine in members.engines.items() if engine.node == "b"]
        members.lost(rank, now)
        assert [type(decision) for decision in members.look(BOTH, now)] == [Start]


def test_a_node_that_is_about_to_go_takes_no_weights_and_no_new_engine() -> None:
    members = two_that_serve()
    assert [engine.rank for engine in members.drain("b")] == [1]
    assert members.in_state(EngineState.LOADED, EngineState.SERVING) == [0]
    members.lost(1, 0.0)
    assert members.look(BOTH, 0.0) == []
    members.look({"a": 1}, 1.0)
    assert members.look(BOTH, 2.0) == [Start(2, "b")], "the node is back, and nothing is held against it"


def test_an_engine_that_came_up_too_late_is_not_wanted() -> None:
    members = two_that_serve()
    [start] = members.look({**BOTH, "c": 1}, 0.0)
    assert isinstance(start, Start)
    members.look(BOTH, 1.0)
    members.lost(start.rank, 1.0)
    assert not members.loaded(start.rank)


@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_happens_each_node_has_no_more_engines_than_fit_and_gets_them_back(seed: int) -> None:
    """Random joins, departures, drains, deaths, loads and updates. No rank is given twice, no decision is about an
    engine that is gone, who serves has weights, and once all is quiet every node that may is full and serves."""
    chance, members = random.Random(seed), Membership()
    room: dict[str, int] = {}
    now, given_ranks, weights = 0.0, set[int](), set[int]()
    drained, dismissed = set[str](), set[str]()

    def look() -> None:
        for decision in members.look(room, now):
            if isinstance(decision, Start):
                assert decision.rank not in given_ranks and decision.node not in drained | dismissed
                given_ranks.add(decision.rank)
            elif isinstance(decision, Lose):
                assert members.lost(decision.rank, now) is not None
            else:
                dismissed.add(decision.node)
        for node, engines in room.items():
            assert sum(engine.node == node for engine in members.engines.values()) <= engines
        assert {engine.node for engine in members.engines.values()} <= room.keys()
        assert set(members.in_state(EngineState.SERVING)) <= weights

    def update() -> None:
        weights.update(members.synced(members.in_state(EngineState.LOADED, EngineState.SERVING)))

    def load() -> None:
        for rank in members.in_state(EngineState.LOADING):
            assert members.loaded(rank)

    for _ in range(60):
        now += chance.choice([0.0, 1.0, 10.0, 200.0])
        match chance.randrange(7):
            case 0:
                room[f"n{len(given_ranks)}-{now}"] = chance.randint(1, 3)
            case 1 if room:
                gone = chance.choice(sorted(room))
                del room[gone]
                drained.discard(gone)
                dismissed.discard(gone)
            case 2 if room:
                leaving = chance.choice(sorted(room))
                members.drain(leaving)
                drained.add(leaving)
            case 3 if members.engines:
                members.lost(chance.choice(sorted(members.engines)), now)
            case 4:
                load()
            case 5:
                update()
            case _:
                pass
        look()
    now += 10 * WINDOW_SECONDS
    for action in (look, load, update):
        action()
    for node, engines in room.items():
        ranks = [engine.rank for engine in members.engines.values() if engine.node == node]
        if node not in drained | dismissed:
            assert len(ranks) == engines and set(ranks) <= set(members.in_state(EngineState.SERVING))


def silent(_: Liveness, _now: float) -> None:
    """Says nothing."""


def works(engine: Liveness, now: float) -> None:
    engine.progressed(int(now), now)


def repeats(engine: Liveness, now: float) -> None:
    engine.progressed(7, now)


def answers(engine: Liveness, now: float) -> None:
    if engine.to_be_asked(now):
        engine.generated(now)


@pytest.mark.parametrize(
    ("behavior", "asked", "wedged"),
    [(silent, True, True), (works, False, False), (repeats, True, True), (answers, False, False)],
    ids=["says nothing", "generates", "reports the same number again and again", "is idle and answers when asked"],
)
def test_an_engine_is_judged_by_its_work(
    behavior: Callable[[Liveness, float], None], asked: bool, wedged: bool
) -> None:
    engine = Liveness(0.0)
    for second in range(1, int(WEDGED_AFTER_SECONDS) + 2):
        behavior(engine, float(second))
        if second < ASK_AFTER_SECONDS:
            assert not engine.to_be_asked(second)
    assert (engine.to_be_asked(second), engine.wedged(second)) == (asked, wedged)


@pytest.mark.parametrize(
    ("took", "limit"),
    [([], FIRST_SYNC_SECONDS), ([1.0], FIRST_SYNC_SECONDS), ([1.0, 2.0], LEAST_SYNC_SECONDS), ([90.0, 30.0], 900.0)],
    ids=["the first", "the second", "short ones", "ten times the longest"],
)
def test_how_long_an_update_may_take(took: list[float], limit: float) -> None:
    known = SyncLimit()
    for seconds in took:
        known.took(seconds)
    assert known.seconds == limit
