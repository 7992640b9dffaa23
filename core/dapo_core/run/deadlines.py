"""When a run, or an attempt of it, has taken too long. Pure: times go in, deadlines come out, all of one clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dapo_core.jobspec import RunPolicy
from dapo_core.run.reasons import Reason


@dataclass(frozen=True)
class Deadline:
    """A limit of the run policy: when it passes (seconds), and what ends the attempt then."""

    at: float
    reason: Reason
    message: str


def active_deadline(policy: RunPolicy, run_started: float | None) -> Deadline | None:
    """The run's own deadline; None where the policy has none or nothing has started."""
    limit = policy.active_deadline_seconds
    if limit is None or run_started is None:
        return None
    message = f"The run took longer than activeDeadlineSeconds ({limit} s)."
    return Deadline(run_started + limit, Reason.DEADLINE_EXCEEDED, message)


def start_deadline(policy: RunPolicy, since: float, what: str = "The trainer was not ready") -> Deadline:
    """When an attempt that started at `since` has to be ready; `what` begins the sentence."""
    limit = policy.start_timeout_seconds
    return Deadline(since + limit, Reason.START_TIMEOUT, f"{what} within startTimeoutSeconds ({limit} s).")


def stall_deadline(policy: RunPolicy, since: float, step: int | None) -> Deadline:
    """When the step after `step` has to be finished, given that nothing has been since `since`."""
    limit = policy.stall_timeout_seconds
    after = "before the first step" if not step else f"after step {step}"
    message = f"No step was finished within stallTimeoutSeconds ({limit} s) {after}."
    return Deadline(since + limit, Reason.STALLED, message)


@dataclass(frozen=True)
class Milestones:
    """When an attempt last got further."""

    attempt_started: float
    ready_at: float | None = None
    step: int | None = None
    step_at: float | None = None

    def at(self, now: float, *, starting: bool, step: int | None) -> "Milestones":
        """The milestones with what is seen now: whether the attempt is still starting, and its last finished step."""
        seen = self if starting or self.ready_at is not None else replace(self, ready_at=now)
        if step is not None and (seen.step is None or step > seen.step):
            seen = replace(seen, step=step, step_at=now, ready_at=seen.ready_at if seen.ready_at is not None else now)
        return seen


def overdue(policy: RunPolicy, milestones: Milestones, run_started: float, now: float) -> Deadline | None:
    """The deadline that has passed, if any; the run's own comes first."""
    if milestones.ready_at is None:
        own = start_deadline(policy, milestones.attempt_started)
    else:
        own = stall_deadline(policy, max(milestones.ready_at, milestones.step_at or 0.0), milestones.step)
    due = (active_deadline(policy, run_started), own)
    return next((deadline for deadline in due if deadline is not None and now >= deadline.at), None)


# The longest that these parts of a start take, in seconds, on slow machines; others have startTimeoutSeconds. By the
# beginning of the heartbeat's detail.
STARTING_RAY: Final = "starting Ray"
LOADING_ENGINES: Final = "loading verl and vLLM"
WAITING_FOR_ROLLOUTS: Final = "waiting for rollouts"  # of a step's phase: nothing hangs, and nothing is limited
START_LIMITS: Final = {STARTING_RAY: 300.0, LOADING_ENGINES: 900.0}
# The phases of a step. Once a phase was finished REPEATS times, it may take FACTOR times its longest, and at least
# LEAST_SECONDS; until then, and at most, stallTimeoutSeconds.
STEP_PHASES: Final = ("generate", "score", "update", "sync", "checkpoint", "validate")
GENERATING: Final = ("generate", "validate")
REPEATS: Final = 2
FACTOR: Final = 10.0
LEAST_SECONDS: Final = 600.0


@dataclass(frozen=True)
class PhaseAges:
    """The phase that a trainer is in and since when, how often each phase was finished, and the longest of each
    (seconds)."""

    phase: str = ""
    detail: str = ""
    since: float = 0.0
    finished: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, float] = field(default_factory=dict)

    def at(self, now: float, phase: str, detail: str = "") -> "PhaseAges":
        """These ages when the trainer begins another phase."""
        if self.detail == WAITING_FOR_ROLLOUTS:
            return PhaseAges(phase, detail, now, self.finished, self.longest)
        took = max(self.longest.get(self.phase, 0.0), now - self.since)
        finished = {**self.finished, self.phase: self.finished.get(self.phase, 0) + 1}
        return PhaseAges(phase, detail, now, finished, {**self.longest, self.phase: took})

    def deadline(self, policy: RunPolicy, alive: float = 0.0) -> Deadline | None:
        """When the phase has to be over; None for one without a limit of its own. `alive`: when the last group of
        responses was finished, which other phases than those that generate do not wait for."""
        limit = self._limit(policy)
        if limit is None:
            return None
        what = self.detail or self.phase
        message = f"The trainer hangs: {what!r} has lasted for {limit:.0f} s"
        usual = self.longest.get(self.phase)
        if self.phase in STEP_PHASES and usual is not None:
            message += f", and never took more than {usual:.0f} s before"
        since = max(self.since, alive) if self.phase in GENERATING else self.since
        return Deadline(since + limit, Reason.STALLED, f"{message}.")

    def _limit(self, policy: RunPolicy) -> float | None:
        if self.phase == "start":
            return next((limit for begin, limit in START_LIMITS.items() if self.detail.startswith(begin)), None)
        if (
            self.detail == WAITING_FOR_ROLLOUTS
            or self.phase not in STEP_PHASES
            or self.finished.get(self.phase, 0) < REPEATS
        ):
            return None
        return min(float(policy.stall_timeout_seconds), max(LEAST_SECONDS, FACTOR * self.longest[self.phase]))
