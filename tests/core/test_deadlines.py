"""Deadlines of the run policy."""

import pytest

from dapo_core.jobspec import RunPolicy
from dapo_core.run.deadlines import LEAST_SECONDS, START_LIMITS, WAITING_FOR_ROLLOUTS, Milestones, PhaseAges, overdue

POLICY = RunPolicy.model_validate(
    {"startTimeoutSeconds": 100, "stallTimeoutSeconds": 50, "activeDeadlineSeconds": 1000}
)


@pytest.mark.parametrize(
    ("milestones", "now", "reason"),
    [
        pytest.param(Milestones(0.0), 99.0, None, id="still starting"),
        pytest.param(Milestones(0.0), 100.0, "StartTimeout", id="never ready"),
        pytest.param(Milestones(0.0, ready_at=90.0), 139.0, None, id="first step on its way"),
        pytest.param(Milestones(0.0, ready_at=90.0), 140.0, "Stalled", id="hung before the first step"),
        pytest.param(Milestones(0.0, ready_at=90.0, step=3, step_at=130.0), 179.0, None, id="steps go on"),
        pytest.param(Milestones(0.0, ready_at=90.0, step=3, step_at=130.0), 180.0, "Stalled", id="hung after a step"),
        pytest.param(
            Milestones(900.0, ready_at=910.0, step=3, step_at=999.0), 1000.0, "DeadlineExceeded", id="deadline"
        ),
    ],
)
def test_limits(milestones: Milestones, now: float, reason: str | None) -> None:
    late = overdue(POLICY, milestones, run_started=0.0, now=now)
    assert (late.reason if late else None) == reason


def test_milestones_advance_by_readiness_and_by_new_steps_only() -> None:
    seen = Milestones(0.0).at(1.0, starting=True, step=None)
    assert seen.ready_at is None
    seen = seen.at(2.0, starting=False, step=None).at(3.0, starting=False, step=4)
    assert seen.at(9.0, starting=False, step=4) == Milestones(0.0, ready_at=2.0, step=4, step_at=3.0)


def steps(*seconds: float, phase: str = "update") -> PhaseAges:
    """A trainer that has finished a phase so often, each time after so long, and is in it again."""
    ages, now = PhaseAges(), 0.0
    for took in seconds:
        ages = ages.at(now, phase)
        ages = ages.at(now + took, "sync" if phase != "sync" else "score")
        now += took
    return ages.at(now, phase)


DEFAULTS = RunPolicy()


@pytest.mark.parametrize(
    ("ages", "limit"),
    [
        pytest.param(PhaseAges().at(0.0, "start", "starting Ray"), START_LIMITS["starting Ray"], id="starting Ray"),
        pytest.param(PhaseAges().at(0.0, "start", "checking model and data"), None, id="a download"),
        pytest.param(PhaseAges().at(0.0, "stop", "uploading the final metrics"), None, id="an upload"),
        pytest.param(steps(100.0), None, id="the second time"),
        pytest.param(steps(1.0, 1.0).at(9.0, "update", WAITING_FOR_ROLLOUTS), None, id="no engine to generate with"),
        pytest.param(
            steps(1.0, 1.0).at(9.0, "update", WAITING_FOR_ROLLOUTS).at(9000.0, "update"),
            LEAST_SECONDS,
            id="a wait for engines is not what a phase takes",
        ),
        pytest.param(steps(100.0, 90.0), 1000.0, id="ten times the longest"),
        pytest.param(steps(1.0, 1.0), LEAST_SECONDS, id="a short phase"),
        pytest.param(steps(1000.0, 1000.0), float(DEFAULTS.stall_timeout_seconds), id="no longer than a stall"),
    ],
)
def test_limits_of_phases(ages: PhaseAges, limit: float | None) -> None:
    late = ages.deadline(DEFAULTS)
    assert (late.at - ages.since if late else None) == limit
    assert late is None or late.reason == "Stalled"


@pytest.mark.parametrize(("phase", "counts"), [("generate", True), ("update", False)])
def test_finished_groups_are_a_sign_of_life_of_the_phases_that_wait_for_them(phase: str, counts: bool) -> None:
    ages = steps(1.0, 1.0, phase=phase)
    late = ages.deadline(DEFAULTS, alive=500.0)
    assert late is not None
    assert late.at == (500.0 if counts else ages.since) + LEAST_SECONDS
