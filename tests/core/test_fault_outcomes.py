"""What is made of a job that was watched while faults hit it, and of what its driver counted meanwhile."""

import pytest

from dapo_core.run import metrics
from dapo_core.run.effective_time import EffectiveTime
from dapo_core.run.fault_outcomes import (
    InjectedFault,
    Sight,
    StepLengths,
    group_account,
    outcome_of,
    outcomes_of,
    spent_between,
    step_lengths,
)
from dapo_core.run.fault_plan import FaultKind, PlannedFault
from dapo_core.run.store_rows import CurvePoint

PLANNED = PlannedFault(10, FaultKind.KILL, "rollout", 0.5)


def sight(at: float, step: int | None = 5, attempt: int = 1, whole: bool = True) -> Sight:
    return Sight(at, attempt, step, "Training", whole)


@pytest.mark.parametrize(
    ("sights", "attempts", "whole", "step", "lacking"),
    [
        pytest.param([sight(9), sight(12)], (1, 1), None, None, False, id="nobody noticed"),
        pytest.param(
            [sight(9), sight(11, whole=False), sight(14, 6, whole=False), sight(40, 7)],
            (1, 1),
            30,
            4,
            False,
            id="a rollout was replaced",
        ),
        pytest.param(
            [sight(9), sight(11, whole=False), sight(30, 3, 2, whole=False), sight(90, 6, 2)],
            (1, 2),
            80,
            80,
            False,
            id="an attempt ended, and its last step was repeated",
        ),
        pytest.param([sight(9), sight(11, whole=False)], (1, 1), None, None, True, id="still lacking"),
        pytest.param([], (0, 0), None, None, False, id="nothing seen"),
        pytest.param([sight(12, None), sight(15, 1)], (1, 1), None, 5, False, id="before the first step"),
    ],
)
def test_what_followed_a_fault(
    sights: list[Sight], attempts: tuple[int, int], whole: float | None, step: float | None, lacking: bool
) -> None:
    outcome = outcome_of(InjectedFault(PLANNED, 10, "rollout-1-0"), sights, 1000)
    assert (outcome.attempt_before, outcome.attempt_after) == attempts
    assert (outcome.whole_after, outcome.step_after, outcome.lacking) == (whole, step, lacking)


def test_an_attempt_that_ended_is_charged_to_the_last_fault_before_it() -> None:
    faults = [InjectedFault(PLANNED, at, "a") for at in (10.0, 20.0, 30.0)]
    sights = [sight(5), sight(15), sight(25, attempt=2, whole=False), sight(35, attempt=2)]
    changed = [(each.attempt_before, each.attempt_after) for each in outcomes_of(faults, sights)]
    assert changed == [(1, 1), (1, 2), (2, 2)]


def curves(*steps: dict[str, float]) -> dict[str, list[CurvePoint]]:
    """Of steps 1, 2, ... that ended at 100, 200, ..."""
    found: dict[str, list[CurvePoint]] = {}
    for number, step in enumerate(steps, start=1):
        for name, value in step.items():
            found.setdefault(f"dapo/groups/{name}", []).append(CurvePoint(number, 1, number * 100, value, None))
    return found


def step(generated: int, trained: int = 4, carried: int = 0, **others: float) -> dict[str, float]:
    return {"generated": generated, "trained": trained, "carried": carried, "dropped": 0, "stale": 0, **others}


@pytest.mark.parametrize(
    ("steps", "lost", "unaccounted"),
    [
        pytest.param([step(8, mixed=0.5, lost=0.0)], 0, 0, id="all are there"),
        pytest.param([step(8, mixed=0.625, lost=0.125, dropped=1)], 1, 0, id="one failed, one was surplus"),
        pytest.param([step(8, mixed=0.75)], 0, 2, id="two are missing"),
        pytest.param([step(8, mixed=0.375)], 0, -1, id="one was trained on twice"),
        pytest.param([step(8, mixed=0.75, carried=2), step(4, mixed=0.5)], 0, 0, id="two are carried on"),
        pytest.param([step(8, mixed=0.75, carried=2)], 0, 0, id="two are carried beyond the last step"),
        pytest.param([step(8, mixed=0.75, carried=2), step(4, mixed=0.25)], 0, -1, id="of two carried three are used"),
        pytest.param([step(8, mixed=1.0, carried=4), step(0)], 0, 0, id="nothing is generated"),
        pytest.param([step(8, mixed=0.5, spread=0.75, stale=2)], 0, 0, id="filtered by spread"),
    ],
)
def test_every_group_is_accounted_for(steps: list[dict[str, float]], lost: int, unaccounted: int) -> None:
    account = group_account(curves(*steps), since=0)
    assert (account.steps, account.lost, account.unaccounted, account.unknown) == (len(steps), lost, unaccounted, 0)


def test_nobody_has_counted_what_came_with_a_checkpoint() -> None:
    """After step 1 another attempt resumes with the two groups that it carried, and with one that came back later."""
    resumed = curves(step(8, mixed=0.75, carried=2), step(8, mixed=0.5, carried=3), step(8, mixed=0.5, carried=3))
    for points in resumed.values():
        points[1:] = [point._replace(attempt=2) for point in points[1:]]
    account = group_account(resumed, since=0)
    assert (account.steps, account.unaccounted, account.unknown) == (3, 0, 1)


def test_an_account_of_the_steps_since() -> None:
    account = group_account(curves(step(8, mixed=0.75, carried=2), step(4, mixed=0.5), step(4, mixed=1.0)), since=150)
    assert (account.steps, account.generated, account.trained, account.unaccounted) == (2, 8, 8, 0)


def test_without_dynamic_sampling_groups_of_one_verdict_are_kept() -> None:
    assert group_account(curves(step(4, mixed=0.25)), 0, keeps_uniform=True).unaccounted == 0


def test_a_metric_that_is_not_a_number_is_no_account() -> None:
    spoiled = curves(step(8, mixed=0.5), step(8))
    spoiled[metrics.GROUPS_MIXED] = [CurvePoint(1, 1, 100, None, "nan")]
    assert group_account(spoiled, 0).unknown == 2


def test_what_was_spent_from_one_moment_to_another() -> None:
    before = EffectiveTime(100, 60, {"Starting": 30.0})
    after = EffectiveTime(400, 300, {"NodeLost": 50.0, "Starting": 30.0})
    assert spent_between(before, after) == EffectiveTime(300, 240, {"NodeLost": 50.0})


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        pytest.param([4] * 40, StepLengths(10, 4, None, 0), id="nothing is missing"),
        pytest.param(
            [4] * 15 + [3] * 25, StepLengths(10, 1, 10, 2, 1.0), id="one of four from the middle of a step on"
        ),
        pytest.param([], StepLengths(None, 0, None, 0), id="nothing seen"),
    ],
)
def test_steps_with_everything_and_without(ready: list[int], expected: StepLengths) -> None:
    sights = [Sight(at + 0.5, 1, 1, "Training", True, count) for at, count in enumerate(ready)]
    ends = [995.0, 1010.0, 1020.0, 1030.0, 1040.0]  # the first one began before the storm
    curve = [CurvePoint(number, 1, end, 10.0, None) for number, end in enumerate(ends, start=1)]
    assert step_lengths([*curve, CurvePoint(9, 1, 1040.0, None, "nan")], sights, 1000.0) == expected


def test_a_step_is_compared_with_those_near_it() -> None:
    """The job's steps take ten times as long from step 50 on, and one and a half times that where a pod is missing."""
    curve, sights, at = [], [], 0.0
    for number in range(1, 101):
        is_whole = number <= 50 or number % 2 == 0
        length = (1.0 if number <= 50 else 10.0) * (1.0 if is_whole else 1.5)
        sights.append(Sight(at + length / 2, 1, number, "Training", is_whole, 4 if is_whole else 3))
        at += length
        curve.append(CurvePoint(number, 1, 1000.0 + at, length, None))
    found = step_lengths(curve, sights, 1000.0)
    assert (found.complete_steps, found.reduced_steps, found.complete, found.times) == (75, 25, 1.0, 1.5)
