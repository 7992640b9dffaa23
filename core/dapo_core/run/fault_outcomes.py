"""What a job did after each fault of a plan, from what was seen of it every second or so. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from dapo_core.run import metrics
from dapo_core.run.effective_time import EffectiveTime
from dapo_core.run.fault_plan import PlannedFault
from dapo_core.run.store_rows import CurvePoint

_USED: Final = (metrics.GROUPS_TRAINED, metrics.GROUPS_DROPPED, metrics.GROUPS_STALE)


@dataclass(frozen=True)
class Sight:
    """What was seen of a job, `at` seconds after the begin. `whole`: all pods or engines that it wants are ready;
    `ready`: how many are."""

    at: float
    attempt: int
    step: int | None
    phase: str
    whole: bool
    ready: int = 0


@dataclass(frozen=True)
class InjectedFault:
    """A fault as it happened, `at` seconds after the begin. `target` is what it hit; empty when nothing was, which
    `why` explains."""

    planned: PlannedFault
    at: float
    target: str
    why: str = ""


@dataclass(frozen=True)
class FaultOutcome:
    """What followed. `whole_after`: seconds until the job had everything again, None if it never lacked anything, or
    still does (`lacking`). `step_after`: seconds until a step was seen that is newer than all before; None for none."""

    fault: InjectedFault
    attempt_before: int
    attempt_after: int
    whole_after: float | None
    step_after: float | None
    lacking: bool


def outcome_of(fault: InjectedFault, sights: Sequence[Sight], until: float) -> FaultOutcome:
    """What followed a fault until `until`, when the next one came or the watch ended; what comes later belongs to
    another. The seconds until it was whole and made a step may be later."""
    before = [sight for sight in sights if sight.at <= fault.at]
    after = [sight for sight in sights if sight.at > fault.at]
    attempt = before[-1].attempt if before else (after[0].attempt if after else 0)
    reached = max((sight.step or 0 for sight in before), default=0)
    own = [sight for sight in after if sight.at <= until]
    broken = next((sight for sight in own if not sight.whole), None)
    whole = None if broken is None else next((s for s in after if s.at > broken.at and s.whole), None)
    step = next((sight for sight in after if (sight.step or 0) > reached), None)
    return FaultOutcome(
        fault=fault,
        attempt_before=attempt,
        attempt_after=own[-1].attempt if own else attempt,
        whole_after=None if whole is None else whole.at - fault.at,
        step_after=None if step is None else step.at - fault.at,
        lacking=broken is not None and whole is None,
    )


def outcomes_of(faults: Sequence[InjectedFault], sights: Sequence[Sight]) -> list[FaultOutcome]:
    """What followed each of the faults, in their order."""
    ends = [*(fault.at for fault in faults[1:]), float("inf")]
    return [outcome_of(fault, sights, until) for fault, until in zip(faults, ends, strict=True)]


@dataclass(frozen=True)
class GroupAccount:
    """Groups of some steps, as the driver has counted them. `lost` ended with an error instead of responses, and
    `unaccounted` were kept, but neither trained on nor dropped nor carried on: more than 0 are missing, fewer are there
    twice. `unknown` steps have no complete account: of the first one of an attempt that resumed nobody has counted the
    groups that came with the checkpoint."""

    steps: int
    generated: int
    trained: int
    lost: int
    unaccounted: int
    unknown: int

    def plus(self, before: Mapping[str, float], step: Mapping[str, float], keeps_uniform: bool) -> "GroupAccount":
        """This and the account of a step that is one of `steps`, from its values and those of the one before it."""
        made, lost = step.get(metrics.GROUPS_GENERATED, 0.0), step.get(metrics.GROUPS_LOST, 0.0)
        needed = (metrics.GROUPS_TRAINED, metrics.GROUPS_CARRIED)
        is_known = all(name in step for name in needed) and metrics.GROUPS_CARRIED in before
        # A step that generated nothing has no shares.
        is_known = is_known and (not made or metrics.GROUPS_MIXED in step)
        missing = 0.0
        if is_known:
            share = step.get(metrics.GROUPS_SPREAD, step.get(metrics.GROUPS_MIXED, 0.0))
            kept = made * (1.0 - lost if keeps_uniform else share)
            used = sum(step.get(name, 0.0) for name in _USED)
            # Each step counts at its end what it carries to the next one.
            missing = before[metrics.GROUPS_CARRIED] + kept - used - step[metrics.GROUPS_CARRIED]
        return replace(
            self,
            generated=self.generated + round(made),
            trained=self.trained + round(step.get(metrics.GROUPS_TRAINED, 0.0)),
            lost=self.lost + round(made * lost),
            unaccounted=self.unaccounted + round(missing),
            unknown=self.unknown + (not is_known),
        )


# Nothing is carried into the first step of a run.
_BEFORE_ALL: Final = {metrics.GROUPS_CARRIED: 0.0}
# What the account needs of a step.
ACCOUNT_METRICS: Final = (
    metrics.GROUPS_GENERATED,
    metrics.GROUPS_CARRIED,
    metrics.GROUPS_TRAINED,
    metrics.GROUPS_DROPPED,
    metrics.GROUPS_STALE,
    metrics.GROUPS_MIXED,
    metrics.GROUPS_SPREAD,
    metrics.GROUPS_LOST,
)


def group_account(
    curves: Mapping[str, Sequence[CurvePoint]], since: float, keeps_uniform: bool = False
) -> GroupAccount:
    """The account of the steps that ended after `since` (Unix seconds), from the curves of ACCOUNT_METRICS.
    `keeps_uniform`: the job trains on groups of one verdict too."""
    steps: dict[tuple[int, int], dict[str, float]] = {}
    for name in ACCOUNT_METRICS:
        for point in curves.get(name, ()):
            if point.value is not None:
                steps.setdefault((point.attempt, point.step), {})[name] = point.value
    ended = [(point.attempt, point.step) for point in curves.get(metrics.GROUPS_TRAINED, ()) if point.ts > since]
    account = GroupAccount(len(ended), 0, 0, 0, 0, 0)
    for attempt, number in ended:
        before = _BEFORE_ALL if number == 1 else steps.get((attempt, number - 1), {})
        account = account.plus(before, steps.get((attempt, number), {}), keeps_uniform)
    return account


# A job's steps get longer and shorter as it learns: one with pods missing is compared with the others near it.
NEAR_STEPS: Final = 20


@dataclass(frozen=True)
class StepLengths:
    """Medians in seconds, and of how many steps: of those with as many pods or engines as were ever seen ready, and of
    those that had fewer from beginning to end. None of no step. `times`: how many times as long the latter took as the
    former within NEAR_STEPS of them (median); None where there are none so near."""

    complete: float | None
    complete_steps: int
    reduced: float | None
    reduced_steps: int
    times: float | None = None


def step_lengths(seconds: Sequence[CurvePoint], sights: Sequence[Sight], begun: float) -> StepLengths:
    """`seconds`: the curve of the steps' lengths; `begun`: the begin of the sights (Unix seconds). Steps between the
    two kinds, and those of which nothing was seen, count for neither."""
    most = max((sight.ready for sight in sights), default=0)
    lengths: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for point in seconds:
        if point.value is None:
            continue
        end = point.ts - begun
        seen = {sight.ready == most for sight in sights if end - point.value <= sight.at <= end}
        if len(seen) == 1 and end - point.value >= 0:
            lengths[seen.pop()][point.step] = point.value
    complete, reduced = lengths[True], lengths[False]
    times = [length / usual for step, length in reduced.items() if (usual := _usual(complete, step))]
    return StepLengths(
        _median(complete.values()), len(complete), _median(reduced.values()), len(reduced), _median(times)
    )


def _usual(lengths: Mapping[int, float], step: int) -> float | None:
    """The median of those near a step."""
    return _median(length for number, length in lengths.items() if abs(number - step) <= NEAR_STEPS)


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return median(known) if known else None


def spent_between(before: EffectiveTime, after: EffectiveTime) -> EffectiveTime:
    """What was held, useful and lost from one moment to a later one. Time that was useful before, and is not since a
    later attempt repeated its steps, is not taken off again."""
    lost = {why: seconds - before.lost.get(why, 0.0) for why, seconds in after.lost.items()}
    return EffectiveTime(
        held=max(0.0, after.held - before.held),
        useful=max(0.0, after.useful - before.useful),
        lost={why: seconds for why, seconds in lost.items() if seconds >= 1.0},
    )
