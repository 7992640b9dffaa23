"""Limits of an attempt, signs of kinship, and signals: the pure parts of supervision."""

import signal

import pytest

from dapo_core.last_words import LastWords
from dapo_core.spec import RunPolicy
from dapo_trainer.local.deadlines import Pulse, overdue
from dapo_trainer.local.endings import why
from dapo_trainer.local.kinship import ancestry, family, in_session, still_there
from dapo_trainer.local.proctable import Identity, Process, Table, parse_stat
from dapo_trainer.local.signals import StopRequest

POLICY = RunPolicy(startTimeoutSeconds=100, stallTimeoutSeconds=50, activeDeadlineSeconds=1000)


@pytest.mark.parametrize(
    ("pulse", "now", "reason"),
    [
        pytest.param(Pulse(0.0), 99.0, None, id="still starting"),
        pytest.param(Pulse(0.0), 100.0, "StartTimeout", id="never ready"),
        pytest.param(Pulse(0.0, ready_at=90.0), 139.0, None, id="first step on its way"),
        pytest.param(Pulse(0.0, ready_at=90.0), 140.0, "Stalled", id="hung before the first step"),
        pytest.param(Pulse(0.0, ready_at=90.0, step=3, step_at=130.0), 179.0, None, id="steps go on"),
        pytest.param(Pulse(0.0, ready_at=90.0, step=3, step_at=130.0), 180.0, "Stalled", id="hung after a step"),
        pytest.param(Pulse(900.0, ready_at=910.0, step=3, step_at=999.0), 1000.0, "DeadlineExceeded", id="deadline"),
    ],
)
def test_limits(pulse: Pulse, now: float, reason: str | None) -> None:
    late = overdue(POLICY, pulse, run_started=0.0, now=now)
    assert (late.reason if late else None) == reason


def test_a_pulse_is_advanced_by_readiness_and_by_new_steps_only() -> None:
    pulse = Pulse(0.0).beat(starting=True, step=None, now=1.0)
    assert pulse.ready_at is None
    pulse = pulse.beat(starting=False, step=None, now=2.0).beat(starting=False, step=4, now=3.0)
    pulse = pulse.beat(starting=False, step=4, now=9.0)
    assert pulse == Pulse(0.0, ready_at=2.0, step=4, step_at=3.0)


@pytest.mark.parametrize(
    ("signals", "asked", "insisted"),
    [
        pytest.param([], False, False, id="none"),
        pytest.param([signal.SIGINT], True, False, id="Ctrl-C"),
        pytest.param([signal.SIGINT, signal.SIGINT], True, True, id="Ctrl-C twice"),
        pytest.param([signal.SIGTERM], True, False, id="kill"),
        pytest.param([signal.SIGTERM, signal.SIGINT], True, True, id="kill, then Ctrl-C"),
        pytest.param([signal.SIGHUP, signal.SIGTERM], True, False, id="a terminal that closes"),
    ],
)
def test_stop_requests(signals: list[int], asked: bool, insisted: bool) -> None:
    request = StopRequest()
    for number in signals:
        request.receive(number)
    assert (request.asked, request.insisted) == (asked, insisted)


def process(pid: int, parent: int, session: int = 1, started: int = 10) -> Process:
    return Process(Identity(pid, started + pid), f"p{pid}", "S", parent, session)


#   1 - 10 (shell) - 20 (supervisor) - 30 (trainer, session 30) - 31 (ray) - 32 (worker, own session)
#   1 - 40 (orphan, session 30)   1 - 50 (a stranger)
TABLE: Table = {
    p.pid: p
    for p in (
        process(1, 0),
        process(10, 1),
        process(20, 10),
        process(30, 20, session=30),
        process(31, 30, session=30),
        process(32, 31, session=32),
        process(40, 1, session=30),
        process(50, 1),
    )
}


class TestKinship:
    def test_descendants(self) -> None:
        assert {row.pid for row in family(TABLE, [30])} == {30, 31, 32}

    def test_what_is_spared_spares_what_is_below_it(self) -> None:
        assert {row.pid for row in family(TABLE, [10], spare={20})} == {10}

    def test_ancestry_ends_at_the_top(self) -> None:
        assert ancestry(TABLE, 20) == {20, 10, 1}

    def test_a_session_outlives_its_parents(self) -> None:
        assert set(in_session(TABLE, TABLE[30].identity)) == {30, 31, 40}

    def test_an_id_given_anew_is_no_session_of_ours(self) -> None:
        assert in_session(TABLE, Identity(30, 5)) == []

    def test_an_id_given_anew_is_not_the_process_seen(self) -> None:
        assert still_there(TABLE, [TABLE[31].identity, Identity(50, 1), Identity(99, 1)]) == [31]


def test_a_name_may_hold_anything() -> None:
    fields = "S 1 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 7777 0"
    assert parse_stat(f"42 (ray::A) (1) ) {fields}") == Process(Identity(42, 7777), "ray::A) (1) ", "S", 1, 42)


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        pytest.param(11, LastWords("BadData", "row 3", None), "BadData", id="own words"),
        pytest.param(30, None, "DistributedFault", id="by its code"),
        pytest.param(1, None, "Crashed", id="an unknown code"),
        pytest.param(137, LastWords("Completed", "stale"), "Killed", id="a killed trainer has no last words"),
        pytest.param(139, None, "Crashed", id="a segmentation fault"),
    ],
)
def test_why(code: int, words: LastWords | None, reason: str) -> None:
    assert why(code, words)[0] == reason
