"""What follows when an attempt has ended: another one, or the end of the run. Pure, and the same for `dapo run` and
the operator.

In this order, the first that applies decides:

1. A finished run is complete; a stop that the user asked for is a stop.
2. A wrong command line (2), spec (10), data (11) or model (12) fails: trying again would only fail again.
3. Past `activeDeadlineSeconds` the run fails.
4. The user's `failureRules`, in their order.
5. Exhausted sampling (20) and guards (21) suspend or fail, as the spec says.
6. A clean termination (143), evictions, preemptions, lost nodes, and pods that never started restart without counting.
7. Everything else (30, 31, 137, a crash, a stall) restarts and counts, up to `maxRestarts`.
"""

from dataclasses import dataclass
from typing import Final, Literal

from dapo_core.jobspec import DAPOJobSpec, RunPolicy
from dapo_core.jobspec.operations import FailureRule
from dapo_core.naming import Role
from dapo_core.run.backoff import Backoff
from dapo_core.run.reasons import ExitCode, Reason, current, reason_of

Action = Literal["complete", "restart", "ignore", "suspend", "stop", "fail"]

NEVER_RETRIED: Final = (ExitCode.USAGE, ExitCode.SPEC, ExitCode.DATA, ExitCode.MODEL)
# Faults of the cluster, or of whoever asked the pods to end: not the job's.
UNCOUNTED_REASONS: Final = (
    Reason.EVICTED,
    Reason.PREEMPTED,
    Reason.NODE_LOST,
    Reason.POD_DELETED,
    Reason.SPEC_CHANGED,
    Reason.TERMINATED,
)


@dataclass(frozen=True)
class Failure:
    """How an attempt ended.

    `exit_code` is None when no process ended (pods that never started, a lost node). `reason` is a CamelCase word, from
    the cluster, the supervisor or the trainer's last words; left empty, it follows from the exit code. `role` is the
    failed pod's, None where there is but one process. `suspends`: the spec suspends, not fails, a run that ends with
    20 or 21.
    """

    exit_code: int | None
    reason: str = ""
    message: str = ""
    role: Role | None = None
    suspends: bool = False

    @property
    def code(self) -> int | None:
        """The exit code as a shell tells it: a process that ended by signal 9 has 137."""
        return 128 - self.exit_code if self.exit_code is not None and self.exit_code < 0 else self.exit_code

    @property
    def why(self) -> str:
        """The reason, never empty."""
        return self.reason or reason_of(self.code)


@dataclass(frozen=True)
class History:
    """What went before: counted restarts so far, attempts in a row before this one that finished no step, and when
    the run started (Unix seconds)."""

    counted: int = 0
    fruitless: int = 0
    started_at: float | None = None


@dataclass(frozen=True)
class Decision:
    """What is done now. `counted`: it is one of `maxRestarts`. `reason` is a CamelCase word, `message` a sentence."""

    action: Action
    counted: bool
    delay_seconds: float
    reason: str
    message: str


def failure_of(
    spec: DAPOJobSpec, exit_code: int | None, reason: str = "", message: str = "", role: Role | None = None
) -> Failure:
    """A failure together with what the job's spec says of it."""
    return Failure(exit_code, reason, message, role, _suspends(spec, exit_code, reason))


def decide(policy: RunPolicy, failure: Failure, history: History, now: float) -> Decision:
    """What follows `failure`; `now` in Unix seconds."""
    why, code = failure.why, failure.code
    if code == ExitCode.DONE:
        return _end("complete", Reason.COMPLETED, failure.message or "The run is complete.")
    if why == Reason.SUSPENDED_BY_USER:
        return _end("stop", why, failure.message or "Stopped as the user asked.")
    if code in NEVER_RETRIED:
        return _end("fail", why, failure.message or f"The trainer ended with {code}, which a restart would not change.")
    if (deadline := policy.active_deadline_seconds) is not None and _age(history, now) >= deadline:
        return _end("fail", Reason.DEADLINE_EXCEEDED, f"The run took longer than activeDeadlineSeconds ({deadline} s).")
    if (rule := next((rule for rule in policy.failure_rules if matches(rule, failure)), None)) is not None:
        return _by_rule(policy, rule, failure, history)
    if code in (ExitCode.SAMPLING_EXHAUSTED, ExitCode.GUARD):
        return _end("suspend" if failure.suspends else "fail", why, failure.message or f"The run ended with {why}.")
    return _restart(policy, failure, history, counted=_counts(failure))


def matches(rule: FailureRule, failure: Failure) -> bool:
    """Whether all conditions of a rule hold; an empty condition holds."""
    return (
        (not rule.roles or failure.role in rule.roles)
        and (not rule.exit_codes or failure.code in rule.exit_codes)
        and (not rule.reasons or failure.why in map(current, rule.reasons))
    )


def _suspends(spec: DAPOJobSpec, exit_code: int | None, reason: str) -> bool:
    if exit_code == ExitCode.SAMPLING_EXHAUSTED:
        return spec.algorithm.dynamic_sampling.on_exhausted == "Suspend"
    acting = [guard for guard in spec.guards if guard.action != "Warn"]
    # The trainer's last words name the guard; without a name it may have been any that acts.
    named = [guard for guard in acting if guard.rule == reason] or acting
    return bool(named) and all(guard.action == "Suspend" for guard in named)


def _counts(failure: Failure) -> bool:
    if failure.why == Reason.START_TIMEOUT:
        # Pods that never ran wait for a place in the cluster; a process that ran and did not get ready is at fault.
        return failure.code is not None
    return failure.why not in UNCOUNTED_REASONS and failure.code != ExitCode.TERMINATED


def _by_rule(policy: RunPolicy, rule: FailureRule, failure: Failure, history: History) -> Decision:
    if rule.action == "Fail":
        return _end("fail", failure.why, _told(failure, "a failureRule says Fail"))
    if rule.action == "Restart":
        return _restart(policy, failure, history, counted=rule.counted)
    if failure.role in (None, "head"):
        # Without its driver a run can not go on: what is left of "ignore" is not to count it.
        return _restart(policy, failure, history, counted=False)
    return Decision("ignore", False, 0.0, failure.why, _told(failure, "a failureRule says Ignore"))


def _restart(policy: RunPolicy, failure: Failure, history: History, *, counted: bool) -> Decision:
    if counted and history.counted >= policy.max_restarts:
        limit = f"maxRestarts ({policy.max_restarts}) counted restarts are used up"
        return _end("fail", Reason.TOO_MANY_RESTARTS, _told(failure, limit))
    # Not counting is no licence to spin: a run that is evicted again and again before its first step waits as well.
    failures = history.counted + 1 if counted else history.fruitless
    delay = Backoff(policy.backoff_seconds, policy.backoff_max_seconds).delay(failures)
    return Decision("restart", counted, delay, failure.why, failure.message)


def _end(action: Action, reason: str, message: str) -> Decision:
    return Decision(action, False, 0.0, reason, message)


def _told(failure: Failure, because: str) -> str:
    what = failure.message.rstrip(".") or f"{failure.why} (exit code {failure.code})"
    return f"{what}: {because}."


def _age(history: History, now: float) -> float:
    return 0.0 if history.started_at is None else now - history.started_at
