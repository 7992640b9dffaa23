"""Guards whose condition is met: condition Degraded, and the end of an attempt when a guard's action asks for it."""

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.guards import Alert
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import Ending


def note_guards(draft: Draft) -> None:
    """Condition Degraded: the active guards. Unchanged while the metadata store cannot be read, or was not yet."""
    alerts = draft.seen.alerts
    if draft.seen.store not in ("ok", "readonly") or alerts is None:
        return
    degraded = draft.condition("Degraded")
    active = degraded is not None and degraded.status == "True"
    if alerts:
        reason = alerts[0].rule if len(alerts) == 1 else Reason.GUARD
        # The steps at which the guards became active: the latest values would make every step a status write.
        message = " ".join(sorted(f"{alert.rule} is active since step {alert.since}." for alert in alerts))
        known = degraded.message.split() if degraded is not None and active else []
        for alert in alerts:
            if alert.rule not in known:
                draft.event("Warning", alert.rule, alert.message)
        draft.set_condition("Degraded", True, reason, message)
    elif degraded is not None:
        if active:
            draft.event("Normal", Reason.HEALTHY, "All guards have cleared.")
        draft.set_condition("Degraded", False, Reason.HEALTHY, "No guard is active.")


def stopped_by_guard(draft: Draft, attempt: Attempt) -> Ending | None:
    """The first active guard whose action ends the attempt. A resumed attempt first gets as many steps as the guard
    asks for."""
    if draft.job.parsed is None:
        return None
    for alert in draft.seen.alerts or ():
        if alert.action != "Warn" and alert.step >= _judged_from(draft.job.parsed.spec, attempt, alert):
            return Ending(alert.rule, alert.message, ExitCode.GUARD)
    return None


def _judged_from(spec: DAPOJobSpec, attempt: Attempt, alert: Alert) -> int:
    steps = next((guard.for_steps for guard in spec.guards if guard.rule == alert.rule), 1)
    return (attempt.from_step or 0) + steps
