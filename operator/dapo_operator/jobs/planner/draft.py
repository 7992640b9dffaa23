"""A plan while it is being made: the status with its conditions, the actions and the events so far."""

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from dapo_core.backoff import Backoff
from dapo_core.jobspec import RunPolicy
from dapo_core.run.reasons import Reason
from dapo_core.run.status import MAX_ATTEMPTS_KEPT, Attempt, Condition, ConditionType, DAPOJobStatus
from dapo_operator.jobs.actions import Action, DeletePod, Event, Plan
from dapo_operator.jobs.dapojob import Job
from dapo_operator.jobs.job_objects import Site
from dapo_operator.jobs.node_state import HEALTHY, Node
from dapo_operator.jobs.observed import Observed, Pod, Refusal
from dapo_operator.kube.objects import timestamp

# A working kubelet has removed a deleted pod long before. Past this its node is lost, and the attempt number fences
# off whatever the pod may still write.
FORCE_SECONDS: Final = 45
# A node that has not reported for so long after the control plane gave it up, which takes 50 seconds, is lost. A
# kubelet that is restarted is back sooner, and its pods train on meanwhile.
SILENT_SECONDS: Final = 30
# The loss of a rollout may be why a driver of an older version ends within this time.
EXPLAINS_SECONDS: Final = 120
MAX_MESSAGE: Final = 1500
# Timestamps are whole seconds, of another clock.
_SLACK: Final = 5
RETRY: Final = Backoff(5.0, 300.0)
_ORDER: Final[Sequence[ConditionType]] = get_args(ConditionType)


class Draft:
    """The rules of this package read it and write into it, one after the other; `plan.plan` has their order."""

    def __init__(self, job: Job, status: DAPOJobStatus, seen: Observed, now: float, site: Site) -> None:
        self.job, self.seen, self.now, self.site = job, seen, now, site
        self.status = status
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.wake_at: float | None = None
        self.gone = False

    def plan(self) -> Plan:
        """The finished plan."""
        return Plan(self.status, tuple(self.actions), tuple(self.events), self.wake_at, self.gone)

    @property
    def policy(self) -> RunPolicy:
        """The run policy; its defaults when the spec is invalid."""
        return self.job.parsed.spec.run_policy if self.job.parsed is not None else RunPolicy()

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt."""
        return self.status.attempts[-1] if self.status.attempts else None

    @property
    def pods(self) -> list[Pod]:
        """The newest attempt's own pods."""
        return [pod for pod in self.seen.pods if pod.owned and self.serves(pod)]

    def serves(self, pod: Pod) -> bool:
        """Whether the pod is one of the newest attempt: created in it, or a trainer that stayed."""
        attempt = self.attempt
        if attempt is None:
            return False
        created = attempt.trainers_created_in
        if created is None or pod.role != "trainer":
            return pod.attempt == attempt.number
        return pod.index < len(created) and pod.attempt == created[pod.index]

    @property
    def core(self) -> list[Pod]:
        """The newest attempt's own pods whose loss ends it: all but rollouts."""
        return [pod for pod in self.pods if pod.role != "rollout"]

    @property
    def ends(self) -> list[Pod]:
        """The newest attempt's own pods, and those that were deleted and whose last state tells why they ended. The end
        of a rollout explains only what happens soon after it."""
        known = [*self.pods, *(pod for pod in self.seen.gone if self.serves(pod))]
        return [pod for pod in known if pod.role != "rollout" or not self._ended_long_ago(pod)]

    def reached(self, attempt: Attempt) -> int | None:
        """The last step this attempt finished; None when it finished none, or that is unknown."""
        step = self.seen.reached if self.seen.recorded_attempt == attempt.number else None
        return step if step is not None and step > (attempt.from_step or 0) else None

    def _ended_long_ago(self, pod: Pod) -> bool:
        at = pod.ended_at if pod.ended_at is not None else pod.delete_by
        return at is not None and self.now > at + EXPLAINS_SECONDS

    def node_of(self, pod: Pod) -> Node:
        """The pod's node; HEALTHY when there is nothing to say of it."""
        return self.seen.nodes.get(pod.node or "", HEALTHY)

    def lost(self, pod: Pod) -> bool:
        """Whether the pod's node is lost: nothing there will end the pod. A node that is only silent is given
        SILENT_SECONDS, unless something else says that it is lost."""
        node = self.node_of(pod)
        if node.gone is not None or node.silent_since is None:
            return node.gone is not None
        named = self.attempt is not None and self.attempt.reason == Reason.NODE_LOST
        return named or self.now >= node.silent_since + SILENT_SECONDS

    def change(self, **fields: Any) -> None:
        """Set fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def change_attempt(self, **fields: Any) -> None:
        """Set fields of the newest attempt."""
        *older, newest = self.status.attempts
        self.change(attempts=[*older, newest.model_copy(update=fields)])

    def add_attempt(self, attempt: Attempt) -> None:
        """Record another attempt; beyond MAX_ATTEMPTS_KEPT the oldest is removed."""
        self.change(attempts=[*self.status.attempts, attempt][-MAX_ATTEMPTS_KEPT:])

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of this type; None when it was never set."""
        return next((condition for condition in self.status.conditions if condition.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"

    def set_condition(self, kind: ConditionType, status: bool, reason: str, message: str = "") -> None:
        """Set a condition. `lastTransitionTime` moves only when its status changes."""
        old = self.condition(kind)
        word: Literal["True", "False"] = "True" if status else "False"
        text = message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
        if old is not None and (old.status, old.reason, old.message) == (word, reason, text):
            return
        since = old.last_transition_time if old is not None and old.status == word else timestamp(self.now)
        new = Condition(
            type=kind,
            status=word,
            reason=reason,
            message=text,
            last_transition_time=since,
            observed_generation=self.job.generation,
        )
        others = [condition for condition in self.status.conditions if condition.type != kind]
        self.change(conditions=sorted([*others, new], key=lambda condition: _ORDER.index(condition.type)))

    def clear_condition(self, kind: ConditionType, reason: str, message: str = "") -> None:
        """Set a condition that is True to False; any other is left as it is."""
        if self.holds(kind):
            self.set_condition(kind, False, reason, message)

    @property
    def spec_changed_since_stop(self) -> bool:
        """Whether the spec was changed after the job was suspended or failed."""
        return self.job.generation > (self.status.stopped_generation or 0)

    @property
    def user_resumed(self) -> bool:
        """Whether a person changed the spec after the job was suspended: the permission to continue. An autoscaler
        changes the number of rollouts, too, and knows nothing of why the job was suspended."""
        stopped_at = self.status.stopped_spec
        # A status of an earlier version has the generation only.
        return self.spec_changed_since_stop and (stopped_at is None or stopped_at != self.job.unscaled)

    def stop(self, kind: Literal["Suspended", "Failed"], reason: str, message: str) -> None:
        """Set a condition that holds until the spec changes, and with it the spec for which it holds."""
        known = self.condition(kind)
        self.set_condition(kind, True, reason, message)
        if self.condition(kind) != known:
            self.change(stopped_generation=self.job.generation, stopped_spec=self.job.unscaled)

    def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Post an Event once the status is written."""
        self.events.append(Event(kind, reason, message))

    def act(self, *actions: Action) -> None:
        """Do something once the status is written."""
        self.actions.extend(actions)

    def delete(self, pod: Pod, grace_seconds: int | None = None) -> None:
        """Delete a pod that is not being deleted yet, or was given more time; force its deletion once that is long
        overdue. After a refusal only once its backoff is over."""
        again = retry_at(self.seen.undeletable)
        if self.now < again:
            self.wake(again)
        elif self.lost(pod):
            # The attempt number fences off whatever it may still write.
            self.act(DeletePod(pod.name, pod.uid, 0))
        elif not pod.deleting or _ends_too_late(pod, self.now, grace_seconds):
            self.act(DeletePod(pod.name, pod.uid, grace_seconds))
        elif overdue(pod, self.now):
            self.act(DeletePod(pod.name, pod.uid, 0))
        elif pod.delete_by is not None:
            self.wake(pod.delete_by + FORCE_SECONDS)

    def wake(self, at: float) -> None:
        """Reconcile again at this time (Unix seconds) even if nothing happens before."""
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)


def retry_at(refusal: Refusal | None) -> float:
    """When to ask the API server again after a refusal (Unix seconds); 0 when it refused nothing."""
    return 0.0 if refusal is None else refusal.at + RETRY.delay(refusal.tries)


def _ends_too_late(pod: Pod, now: float, grace_seconds: int | None) -> bool:
    """Whether the pod is being deleted with a grace period that is clearly longer than this one."""
    return grace_seconds is not None and pod.delete_by is not None and pod.delete_by > now + grace_seconds + _SLACK


def overdue(pod: Pod, now: float) -> bool:
    """Whether a deleted pod still exists FORCE_SECONDS after its deletion should have ended."""
    return pod.delete_by is not None and now >= pod.delete_by + FORCE_SECONDS
