"""Limits of an attempt, signals, and what follows its end: the pure parts of supervision."""

import signal
from typing import Any, ClassVar, cast

import pytest
from builders import job
from trainer_errors import ENDS

from dapo_core.db import AttemptRow
from dapo_core.run.guards import Alert
from dapo_core.run.last_words import LastWords, ending
from dapo_trainer.local.record import GuardWatch, StoreRecord
from dapo_trainer.local.run_view import FinishedStep, Note, shown_record
from dapo_trainer.local.supervisor import decision_after
from dapo_trainer.process.signals import StopRequest
from dapo_trainer.process.trainer_process import why
from dapo_trainer.spool import Record
from dapo_trainer.spool.records import Kind


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


def ended(attempt: int, code: int, reason: str = "", message: str = "It ended.", step_to: int | None = 3) -> AttemptRow:
    return AttemptRow("run", attempt, 0.0, 100.0, 0, step_to, reason, message, code)


class TestPolicy:
    """That core's policy is asked the right question; its own rules are tested in core."""

    @pytest.mark.parametrize(
        ("attempts", "counted", "action", "delay"),
        [
            pytest.param([ended(1, 30)], 0, "restart", 0.0, id="a fault after new steps"),
            pytest.param([ended(1, 30, step_to=None)], 0, "restart", 10.0, id="a fault without a step"),
            pytest.param([ended(1, 30, step_to=None)], 3, "restart", 80.0, id="backoff doubles"),
            pytest.param([ended(1, 30)], 5, "fail", 0.0, id="too many"),
            pytest.param([ended(1, 11)], 0, "fail", 0.0, id="bad data"),
            pytest.param([ended(1, 137, "Stalled")], 0, "restart", 0.0, id="stalled"),
            pytest.param([ended(1, 143)], 0, "restart", 0.0, id="terminated by somebody"),
            pytest.param([ended(n, 143, step_to=None) for n in (1, 2)], 0, "restart", 10.0, id="again without a step"),
            pytest.param([ended(1, 20)], 0, "suspend", 0.0, id="the spec suspends"),
        ],
    )
    def test_what_follows(self, attempts: list[AttemptRow], counted: int, action: str, delay: float) -> None:
        spec = job(algorithm={"dynamicSampling": {"onExhausted": "Suspend"}}).spec
        then = decision_after(spec, attempts, counted, started_at=0.0)
        assert (then.action, then.delay_seconds) == (action, delay)


@pytest.mark.parametrize(("error", "code", "reason", "_message"), ENDS.values(), ids=ENDS.keys())
def test_a_failure_rule_matches_what_the_trainer_writes(
    error: BaseException, code: int, reason: str, _message: str
) -> None:
    spec = job(runPolicy={"failureRules": [{"action": "Fail", "reasons": [reason]}]}).spec
    exit_code, words = ending(error)
    then = decision_after(spec, [ended(1, exit_code, *why(exit_code, words))], 0, started_at=0.0)
    assert (exit_code, then.action, then.reason) == (code, "fail", reason)


class AlertNotes:
    """Records what a store would get: each alert by its rule, with a dash before it when the alert is cleared."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def alert_raised(self, alert: Alert, at: float) -> None:
        self.told.append((alert.rule, at))

    def alert_cleared(self, rule: str, at: float) -> None:
        self.told.append((f"-{rule}", at))


class TestGuard:
    GUARDS: ClassVar = [{"rule": "EntropyCollapse", "action": "Fail", "threshold": 0.05, "forSteps": 2}]

    def told(self, steps: list[tuple[int, int, float]]) -> list[int]:
        guard = GuardWatch(job(guards=self.GUARDS).spec)
        return [s for a, s, v in steps if guard.judge(FinishedStep(a, s, 0.0, {"actor/entropy": v}))]

    @pytest.mark.parametrize(
        ("steps", "told"),
        [
            pytest.param([(1, 1, 0.01), (1, 2, 0.01), (1, 3, 0.01)], [2], id="told once"),
            pytest.param([(1, 1, 0.01), (1, 2, 0.3), (1, 3, 0.01)], [], id="one odd step"),
            pytest.param([(1, 1, 0.01), (1, 2, 0.3), (2, 2, 0.01)], [2], id="a step done again counts as new"),
        ],
    )
    def test_alarms(self, steps: list[tuple[int, int, float]], told: list[int]) -> None:
        assert self.told(steps) == told

    def test_the_store_is_told_of_a_rule_that_holds_now_and_then_and_of_its_end(self) -> None:
        log = AlertNotes()
        guard = GuardWatch(job(guards=self.GUARDS).spec, cast(StoreRecord, log))
        for step, (at, entropy) in enumerate([(0, 0.01), (1, 0.01), (30, 0.01), (62, 0.01), (63, 0.9), (64, 0.9)]):
            guard.judge(FinishedStep(1, step, float(at), {"actor/entropy": entropy}))
        assert log.told == [("EntropyCollapse", 1.0), ("EntropyCollapse", 62.0), ("-EntropyCollapse", 64.0)]

    def test_values_that_are_not_finite_are_seen(self) -> None:
        guard = GuardWatch(job(guards=[{"rule": "NonFinite", "action": "Fail", "forSteps": 1}]).spec)
        alarms = guard.judge(FinishedStep(1, 1, 0.0, {"actor/grad_norm": float("nan")}))
        assert [alarm.action for alarm in alarms] == ["Fail"]


@pytest.mark.parametrize(
    ("kind", "body", "shown"),
    [
        pytest.param("step", {"values": {"m": 1.0}}, FinishedStep(2, 7, 5.0, {"m": 1.0}), id="step"),
        pytest.param(
            "event",
            {"type": "Warning", "reason": "SpoolLost", "message": "lost", "dedup_key": "k"},
            Note(5.0, "SpoolLost", "lost", warning=True),
            id="event",
        ),
        pytest.param("checkpoint", {"state": "committed"}, None, id="a checkpoint has an event"),
        pytest.param("samples", {"key": "k", "rows": 1, "size_bytes": 1}, None, id="samples are not shown"),
    ],
)
def test_what_is_shown_of_a_record(kind: Kind, body: dict[str, Any], shown: FinishedStep | Note | None) -> None:
    assert shown_record(Record(1, kind, 5.0, 2, 7, body)) == shown
