"""Restarts in place: trainers that outlive their attempt and serve the next one, with node, image, model and disk.

The head is the attempt: it is always recreated, and its end is what ends the work of the others. A trainer that has
lost it ends its processes, is no longer ready, and waits for the head of the following number. So a trainer stays when
the head's container is known to have ended, and serves the next attempt once it is seen running and not ready: nothing
of two attempts runs at once. In the status, an attempt records for each of its trainers in which attempt its pod was
created.
"""

from typing import Final

from dapo_core.jobspec import DAPOJob
from dapo_core.naming import child_name
from dapo_core.run.failure_policy import Decision
from dapo_core.run.reasons import Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.builders.pods import restarts_in_place
from dapo_operator.jobs.dapojob import is_edited
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.admission import held_by
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.nodes import avoided_nodes, drain_of_node, loss_of_node
from dapo_operator.kube.objects import unix_seconds

# The longest backoff for which trainers are kept, which hold their GPUs meanwhile.
MAX_BACKOFF_SECONDS: Final = 300
# From then until the next attempt, for whatever else delays it. A pod gives up after ten minutes by itself.
MARGIN_SECONDS: Final = 120
# How long a trainer may take to end its processes and be seen not to be ready, once its head has ended.
LEAVE_SECONDS: Final = 60
# By how much clocks of nodes may differ.
CLOCKS_SECONDS: Final = 5


def trainers_that_stay(draft: Draft, attempt: Attempt, decision: Decision) -> list[Pod]:
    """The trainers of an attempt that ends which serve the next one; none while the head runs, and none where pods are
    to be recreated: after a stall, and when an attempt in place has finished no step."""
    head = next((pod for pod in draft.ends if pod.role == "head" and pod.exit_code is not None), None)
    if head is None or decision.action != "restart" or decision.delay_seconds > MAX_BACKOFF_SECONDS:
        return []
    again = attempt.trainers_created_in is not None and draft.reached(attempt) is None
    if attempt.ready_at is None or attempt.reason == Reason.STALLED or again or not _reads_same_spec(draft, attempt):
        return []
    began = unix_seconds(attempt.ending_at) or draft.now
    until = max(began, min(head.ended_at or began, draft.now)) + LEAVE_SECONDS
    staying = [
        pod
        for pod in draft.pods
        if _can_stay(draft, pod) and not _hung_before(pod, head) and (not pod.ready or draft.now < until)
    ]
    if any(pod.ready for pod in staying):
        draft.wake(until)
    return staying


def _hung_before(pod: Pod, head: Pod) -> bool:
    """Whether a rank of the pod had been silent when the head ended: not being ready tells nothing then."""
    if pod.silent_since is None or head.ended_at is None:
        return False
    return pod.silent_since + CLOCKS_SECONDS < head.ended_at


def kept_trainers(draft: Draft) -> list[Pod]:
    """The trainers that wait for the next attempt; none while one is live."""
    attempt = draft.attempt
    if attempt is None or attempt.ended_at is None or not attempt.trainers_stay:
        return []
    until = (unix_seconds(attempt.ended_at) or 0.0) + MAX_BACKOFF_SECONDS + MARGIN_SECONDS
    # They wait for the head of the number after this one.
    if draft.now >= until or draft.seen.recorded_attempt > attempt.number or not _reads_same_spec(draft, attempt):
        return []
    kept = [pod for pod in draft.pods if _can_stay(draft, pod) and not pod.ready]
    if kept:
        draft.wake(until)
    return kept


def created_in(draft: Draft, job: DAPOJob, number: int) -> list[int] | None:
    """For each trainer of a new attempt, the attempt in which its pod was created; None where all pods are new."""
    kept = {pod.index: pod.attempt for pod in kept_trainers(draft)}
    return [kept.get(index, number) for index in range(job.spec.topology.layout.pods["trainer"])] if kept else None


def trainers_that_stayed(job: str, attempt: Attempt) -> frozenset[str]:
    """The names of the trainer pods that were there before the attempt."""
    created = enumerate(attempt.trainers_created_in or ())
    return frozenset(child_name(job, "trainer", each, index) for index, each in created if each != attempt.number)


def _reads_same_spec(draft: Draft, attempt: Attempt) -> bool:
    """Whether pods that are created now would be those that the attempt has, and read the same job file; of the number
    of rollouts, which it has, too, no trainer takes notice."""
    job, pinned = draft.job, draft.status.pinned
    if job.parsed is None or pinned is None or not restarts_in_place(job.spec) or held_by(draft) is not None:
        return False
    if is_edited(attempt.shape, job.shape) or not job.is_as_pinned(pinned):
        return False
    return pinned.revision in (None, job.revision) or job.is_scaled(pinned)


def _can_stay(draft: Draft, pod: Pod) -> bool:
    if pod.role != "trainer" or not pod.started or pod.finished or pod.deleting or pod.disruption is not None:
        return False
    if pod.node in avoided_nodes(draft):
        return False
    return loss_of_node(draft, pod) is None and drain_of_node(draft, pod) is None
