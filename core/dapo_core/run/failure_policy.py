"""What follows when an attempt has ended: another one, or the end of the run. Pure, and the same for `dapo run` and
the operator.

In this order, the first that applies decides:

1. A finished run is complete; a stop requested by the user is a stop.
2. What the operator or the supervisor ended on purpose fails or suspends: pods that the API server rejects, a deadline
   that has passed, a suspended job.
3. An invalid command line (2), spec (10), data (11) or model (12) fails: a retry would fail again.
4. Past `activeDeadlineSeconds` the run fails.
5. The user's `failureRules`, in their order.
6. Exhausted sampling (20) and guards (21) suspend or fail, as the spec says.
7. A clean termination (143), evictions, drains, preemptions, lost nodes, nodes that reject a pod, and
   pods that never started restart without counting.
8. Everything else (1, 15, 30, 31, 137, a crash, a stall) restarts and counts, up to `maxRestarts`.

An attempt that finished FORGIVING_STEPS steps more than any before it clears the count. The first counted restart has
no backoff if its attempt finished a new step. Restarts in a row that are not counted and finished no step are limited
by `maxUncountedRestarts`, for each reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dapo_core.backoff import Backoff
from dapo_core.jobspec import DAPOJobSpec, RunPolicy
from dapo_core.jobspec.operations import FailureRule
from dapo_core.naming import Role
from dapo_core.run.deadlines import active_deadline
from dapo_core.run.reasons import ExitCode, Reason, current, reason_of

Action = Literal["complete", "restart", "ignore", "suspend", "stop", "fail"]

NEVER_RETRIED: Final = (ExitCode.USAGE, ExitCode.SPEC, ExitCode.DATA, ExitCode.MODEL)
# Ends that the operator or the supervisor brought about, and what they mean whatever the process exited with.
IMPOSED: Final[dict[str, Action]] = {
    Reason.SUSPENDED_BY_USER: "stop",
    Reason.POD_REFUSED: "fail",
    Reason.DEADLINE_EXCEEDED: "fail",
    Reason.SUSPENDED_BY_GUARD: "suspend",
    Reason.SUSPENDED_BY_SAMPLING: "suspend",
}
# Faults of the cluster, or of whoever asked the pods to end: not the job's.
UNCOUNTED_REASONS: Final = (
    Reason.EVICTED,
    Reason.DRAINED,
    Reason.NODE_REJECTED,
    Reason.PREEMPTED,
    Reason.NODE_LOST,
    Reason.POD_DELETED,
    Reason.SPEC_CHANGED,
    Reason.TERMINATED,
)
# Of these, and of pods that never started, somebody may ask for any number.
ASKED_FOR: Final = (Reason.PREEMPTED, Reason.DRAINED, Reason.POD_DELETED, Reason.SPEC_CHANGED, Reason.TERMINATED)
# New steps after which a run counts as recovered from earlier faults: a fault every few days must not end it.
FORGIVING_STEPS: Final = 20


@dataclass(frozen=True)
class Failure:
    """How an attempt ended.

    `exit_code` is None when no process ended (pods that never started, a lost node). `reason` comes from the cluster,
    the supervisor or the trainer's last words; if empty, it follows from the exit code. `role` is the failed pod's,
    None where there is only one process. `suspends`: the spec suspends, not fails, a run that ends with 20 or 21.
    """

    exit_code: int | None
    reason: str = ""
    message: str = ""
    role: Role | None = None
    suspends: bool = False

    @property
    def code(self) -> int | None:
        """The exit code as a shell reports it: 137 for a process ended by signal 9."""
        return 128 - self.exit_code if self.exit_code is not None and self.exit_code < 0 else self.exit_code

    @property
    def why(self) -> str:
        """The reason, never empty."""
        return self.reason or reason_of(self.code)


@dataclass(frozen=True)
class History:
    """What happened before: counted restarts, attempts in a row before this one that finished no step, and when the
    run started (Unix seconds). `advanced` is how many steps this attempt got further than any before it; `uncounted`
    has the uncounted restarts since the last step, by reason."""

    counted: int = 0
    fruitless: int = 0
    started_at: float | None = None
    advanced: int = 0
    uncounted: Mapping[str, int] = field(default_factory=dict)

    @property
    def held_against(self) -> int:
        """The counted restarts that still count."""
        return 0 if self.advanced >= FORGIVING_STEPS else self.counted


@dataclass(frozen=True)
class Decision:
    """What happens next. `counted`: the restart counts against `maxRestarts`, as the `restarts`th. `message` is a
    sentence."""

    action: Action
    counted: bool
    delay_seconds: float
    reason: str
    message: str
    restarts: int = 0


def failure_of(
    spec: DAPOJobSpec, exit_code: int | None, reason: str = "", message: str = "", role: Role | None = None
) -> Failure:
    """A failure with what the job's spec says about it."""
    return Failure(exit_code, reason, message, role, _suspends(spec, exit_code, reason))


def fruitless(attempts: Sequence[tuple[int | None, int | None]]) -> int:
    """How many of the last attempts in a row finished no step. Each is the step it started from and its last finished
    one, None where there is none; the newest attempt comes last."""
    count = 0
    for started_from, last in reversed(attempts):
        if last is not None and last > (started_from or 0):
            break
        count += 1
    return count


def advanced(attempts: Sequence[tuple[int | None, int | None]]) -> int:
    """How many steps the newest attempt finished beyond all that earlier ones had, or had saved. As for `fruitless`."""
    *earlier, (started_from, last) = attempts
    known = [step for attempt in earlier for step in attempt if step is not None]
    return max(0, (last or 0) - max([started_from or 0, *known]))


def decide(policy: RunPolicy, failure: Failure, history: History, now: float) -> Decision:
    """What follows `failure`; `now` in Unix seconds."""
    if failure.code == ExitCode.DONE and failure.role not in (None, "head"):
        # Only the driver knows that the run is complete; a worker that is done without it has lost it.
        failure = replace(failure, exit_code=ExitCode.DISTRIBUTED, reason=Reason.DISTRIBUTED_FAULT)
    why, code = failure.why, failure.code
    if code == ExitCode.DONE:
        return _end("complete", Reason.COMPLETED, failure.message or "The run is complete.")
    if (action := IMPOSED.get(why)) is not None:
        return _end(action, why, failure.message or f"The run ended with {why}.")
    if code in NEVER_RETRIED:
        return _end("fail", why, failure.message or f"The trainer exited with {code}; a retry would fail again.")
    if (deadline := active_deadline(policy, history.started_at)) is not None and now >= deadline.at:
        return _end("fail", deadline.reason, deadline.message)
    if (rule := next((rule for rule in policy.failure_rules if matches(rule, failure)), None)) is not None:
        return _by_rule(policy, rule, failure, history)
    if code in (ExitCode.SAMPLING_EXHAUSTED, ExitCode.GUARD):
        return _end("suspend" if failure.suspends else "fail", why, failure.message or f"The run ended with {why}.")
    return _restart(policy, failure, history, counted=_counts(failure))


def matches(rule: FailureRule, failure: Failure) -> bool:
    """Whether all conditions of a rule hold; an empty condition always does."""
    return (
        (not rule.roles or failure.role in rule.roles)
        and (not rule.exit_codes or failure.code in rule.exit_codes)
        and (not rule.reasons or failure.why in map(current, rule.reasons))
    )


def _suspends(spec: DAPOJobSpec, exit_code: int | None, reason: str) -> bool:
    if exit_code == ExitCode.SAMPLING_EXHAUSTED:
        return spec.algorithm.dynamic_sampling.on_exhausted == "Suspend"
    acting = [guard for guard in spec.guards if guard.action != "Warn"]
    # The reason names the guard; without a name it may have been any that acts.
    named = [guard for guard in acting if guard.rule == reason] or acting
    return bool(named) and all(guard.action == "Suspend" for guard in named)


def _counts(failure: Failure) -> bool:
    if failure.why == Reason.START_TIMEOUT:
        # Pods that never ran were waiting for room in the cluster; a process that never got ready is at fault.
        return failure.code is not None
    return failure.why not in UNCOUNTED_REASONS and failure.code != ExitCode.TERMINATED


def _by_rule(policy: RunPolicy, rule: FailureRule, failure: Failure, history: History) -> Decision:
    if rule.action == "Fail":
        return _end("fail", failure.why, _because(failure, "a failureRule says Fail"))
    if rule.action == "Restart":
        return _restart(policy, failure, history, counted=rule.counted, limited=False)
    if failure.role in (None, "head"):
        # A run cannot continue without its driver: all that is left of Ignore is not to count the restart.
        return _restart(policy, failure, history, counted=False, limited=False)
    return Decision("ignore", False, 0.0, failure.why, _because(failure, "a failureRule says Ignore"))


def _restart(policy: RunPolicy, failure: Failure, history: History, *, counted: bool, limited: bool = True) -> Decision:
    before, limit = history.held_against, ""
    if counted and before >= policy.max_restarts:
        limit = f"maxRestarts ({policy.max_restarts}) counted restarts are used up"
    most = policy.max_uncounted_restarts
    if not counted and limited and failure.why not in ASKED_FOR and history.uncounted.get(failure.why, 0) >= most:
        limit = f"maxUncountedRestarts ({most}) restarts because of {failure.why} without a step are used up"
    if limit:
        return replace(_end("fail", Reason.TOO_MANY_RESTARTS, _because(failure, limit)), restarts=before)
    # Uncounted restarts back off too where a run is evicted again and again before it finishes a step. An attempt that
    # got further than all before it did not fail for what the next one would fail for at once.
    failures = before + (history.advanced == 0) if counted else history.fruitless
    delay = Backoff(policy.backoff_seconds, policy.backoff_max_seconds).delay(failures)
    return Decision("restart", counted, delay, failure.why, failure.message, before + counted)


def _end(action: Action, reason: str, message: str) -> Decision:
    return Decision(action, False, 0.0, reason, message)


def _because(failure: Failure, cause: str) -> str:
    what = failure.message.rstrip(".") or f"{failure.why} (exit code {failure.code})"
    return f"{what}: {cause}."
