"""A plan while it is being made."""

from typing import Any, Literal

from dapo_core.jobspec import RunPolicy
from dapo_core.run.status import MAX_ATTEMPTS_KEPT, Attempt, ConditionType, DAPOJobStatus
from dapo_operator.jobs.actions import Action, DeletePod, Event, Plan
from dapo_operator.jobs.builders.site import Site
from dapo_operator.jobs.job import Job
from dapo_operator.jobs.observed import Observed, Pod
from dapo_operator.jobs.planner.conditions import holds, with_condition


class Draft:
    """The status so far and what is to be done; the functions of this package write into it, one after the other."""

    def __init__(self, job: Job, status: DAPOJobStatus, seen: Observed, now: float, site: Site) -> None:
        self.job, self.seen, self.now, self.site = job, seen, now, site
        self.status = status
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.wake_at: float | None = None
        self.gone = False

    def plan(self) -> Plan:
        """What came out."""
        return Plan(self.status, tuple(self.actions), tuple(self.events), self.wake_at, self.gone)

    @property
    def policy(self) -> RunPolicy:
        """The run policy, its defaults where the spec can not be used."""
        return self.job.job.spec.run_policy if self.job.job is not None else RunPolicy()

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt."""
        return self.status.attempts[-1] if self.status.attempts else None

    @property
    def pods(self) -> list[Pod]:
        """The newest attempt's own pods."""
        number = self.attempt.number if self.attempt else 0
        return [pod for pod in self.seen.pods if pod.owned and pod.attempt == number]

    @property
    def ends(self) -> list[Pod]:
        """The newest attempt's own pods, with those that are gone and whose last state says why."""
        number = self.attempt.number if self.attempt else 0
        return [*self.pods, *(pod for pod in self.seen.gone if pod.attempt == number)]

    def change(self, **fields: Any) -> None:
        """Set fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def change_attempt(self, **fields: Any) -> None:
        """Set fields of the newest attempt."""
        *older, newest = self.status.attempts
        self.change(attempts=[*older, newest.model_copy(update=fields)])

    def add_attempt(self, attempt: Attempt) -> None:
        """Record another attempt; the oldest beyond those kept goes."""
        self.change(attempts=[*self.status.attempts, attempt][-MAX_ATTEMPTS_KEPT:])

    def say(self, kind: ConditionType, status: bool, reason: str, message: str = "") -> None:
        """Set a condition."""
        conditions = self.status.conditions
        changed = with_condition(conditions, kind, status, reason, message, self.now, self.job.generation)
        self.change(conditions=changed)

    def unsay(self, kind: ConditionType, reason: str, message: str = "") -> None:
        """Set a condition that holds to false; one that does not is left as it is."""
        if self.holds(kind):
            self.say(kind, False, reason, message)

    def holds(self, kind: ConditionType) -> bool:
        """Whether a condition is true."""
        return holds(self.status.conditions, kind)

    def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Tell something once, when the status is written."""
        self.events.append(Event(kind, reason, message))

    def act(self, *actions: Action) -> None:
        """Do something once the status is written."""
        self.actions.extend(actions)

    def delete(self, pod: Pod, grace_seconds: int | None = None) -> None:
        """Delete a pod, unless that was asked for already; by force where it was and the time for it is long over."""
        if not pod.deleting:
            self.act(DeletePod(pod.name, pod.uid, grace_seconds))
        elif overdue(pod, self.now):
            self.act(DeletePod(pod.name, pod.uid, 0))
        elif pod.delete_by is not None:
            self.wake(pod.delete_by + FORCE_SECONDS)

    def wake(self, at: float) -> None:
        """Look again at this time, if nothing happens before."""
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)


# A kubelet that lives has removed a pod long before; past this its node is lost, and the attempt's number fences it.
FORCE_SECONDS = 60


def overdue(pod: Pod, now: float) -> bool:
    """Whether a deleted pod is still there long after its time."""
    return pod.delete_by is not None and now >= pod.delete_by + FORCE_SECONDS
