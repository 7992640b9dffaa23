"""Deadlines of the run policy."""

import pytest

from dapo_core.jobspec import RunPolicy
from dapo_core.run.deadlines import Milestones, overdue

POLICY = RunPolicy(startTimeoutSeconds=100, stallTimeoutSeconds=50, activeDeadlineSeconds=1000)


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
