"""The lives of rollouts: pods that come and go while their attempt runs.

A rollout is an index with one live pod; when that ends, or is about to, a pod of the next life takes its place, at once
the first time and with a backoff when lives end early. No pod's name comes back within an attempt: the next life is
recorded in the status before its pod is created. Which indices live follows from the pods alone: those that have one,
the ready ones first, up to the number that the spec asks for.
"""

from collections.abc import Sequence
from typing import Final

from dapo_core.backoff import Backoff
from dapo_core.jobspec import DAPOJob
from dapo_core.naming import child_name
from dapo_core.run.failure_policy import Failure
from dapo_core.run.reasons import Reason
from dapo_core.run.status import Attempt, RolloutLife
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.nodes import drain_of_node, loss_of_node, note_node_faults, tell_avoided
from dapo_operator.jobs.planner.pod_failures import SECONDARY, SETTLE_SECONDS, Ending, ending_of
from dapo_operator.jobs.planner.refusals import refusal_of
from dapo_operator.jobs.planner.reservations import admitted_count, scheduler_of
from dapo_operator.jobs.planner.start import create_rollouts
from dapo_operator.kube.objects import timestamp, unix_seconds

# A life that ends within this time of its start ended early.
EARLY_SECONDS: Final = 120
# A pod that was created longer ago than this is known to the watch; without one it was lost unseen.
UNSEEN_SECONDS: Final = 30


def tend_rollouts(draft: Draft, attempt: Attempt, job: DAPOJob) -> None:
    """Replace the rollouts that ended, add and remove some when the spec asks for another number."""
    wanted = wanted_rollouts(draft, attempt, job)
    if not wanted:
        return
    live = live_rollouts(draft)
    kept = _kept(live, wanted)
    _let_go(draft, [pod for pod in live if pod not in kept])
    indices = _indices(kept, wanted)
    missing = [index for index in indices if index not in {pod.index for pod in kept}]
    due = [index for index in missing if _is_due(draft, attempt, index)]
    lives = {life.index: life.life for life in draft.status.rollout_lives or ()}
    create_rollouts(draft, job, {index: lives.get(index, 1) for index in due})


def wanted_rollouts(draft: Draft, attempt: Attempt, job: DAPOJob) -> int:
    """How many rollouts the attempt should have now; 0 for one that began without any. A scheduler that admits an
    attempt before its pods has reserved room for those of its start, and not for more."""
    wanted = job.spec.topology.layout.pods["rollout"] if attempt.rollouts else 0
    if not scheduler_of(draft).waits:
        return wanted
    admitted = admitted_count(draft, "rollout")
    return min(wanted, attempt.rollouts or 0 if admitted is None else admitted)


def live_rollouts(draft: Draft) -> list[Pod]:
    """Rollout pods of the newest attempt that stay: they have not ended, are not being deleted, and their nodes neither
    are lost nor leave."""
    return [pod for pod in draft.pods if pod.role == "rollout" and _end(draft, pod) is None]


def unreplaced_ends(draft: Draft) -> list[Pod]:
    """Rollout pods that ended, and whose next life is not on record yet."""
    newest = {life.index: life.life for life in draft.status.rollout_lives or ()}
    ends = [pod for pod in draft.ends if pod.role == "rollout" and pod.finished]
    return [pod for pod in ends if newest.get(pod.index, 1) <= pod.life]


def _end(draft: Draft, pod: Pod) -> Ending | None:
    """Why a rollout pod has ended, or is about to; None while it stays."""
    if pod.finished or pod.deleting:
        return ending_of(pod)
    return loss_of_node(draft, pod) or drain_of_node(draft, pod)


def _kept(live: Sequence[Pod], wanted: int) -> list[Pod]:
    """The pods that are kept: one for each index, the ready ones first, then those of the lowest index."""
    ranked = sorted(live, key=lambda pod: (not pod.ready, not pod.scheduled, pod.index, -pod.life))
    best: dict[int, Pod] = {}
    for pod in ranked:
        best.setdefault(pod.index, pod)
    return list(best.values())[:wanted]


def _indices(kept: Sequence[Pod], wanted: int) -> list[int]:
    """The indices of all rollouts: those of the pods that are kept, then the lowest others."""
    taken = {pod.index for pod in kept}
    free = [index for index in range(wanted + len(taken)) if index not in taken]
    return sorted([*taken, *free[: wanted - len(taken)]])


def _let_go(draft: Draft, surplus: Sequence[Pod]) -> None:
    """Delete pods that are too many or about to be lost: until its grace period is over, each finishes what it does or
    hands it over. Of pods that ended, each index keeps the last one for its log."""
    if surplus:
        names = ", ".join(sorted(pod.name for pod in surplus)[:3])
        draft.event("Normal", "RolloutsRemoved", f"{len(surplus)} rollouts are too many and are drained: {names}.")
    rollouts = sorted((pod for pod in draft.pods if pod.role == "rollout"), key=lambda pod: pod.life)
    logs = {pod.index: pod for pod in rollouts if pod.over and not pod.deleting}
    for pod in rollouts:
        ended = _end(draft, pod) is not None and not _ended_just_now(draft, pod)
        if logs.get(pod.index) is not pod and (pod in surplus or ended):
            draft.delete(pod)


def _is_due(draft: Draft, attempt: Attempt, index: int) -> bool:
    """Whether the pod of an index without a live one may be created now; its life is on record then."""
    known = next((life for life in draft.status.rollout_lives or () if life.index == index), None)
    pods = [pod for pod in (*draft.pods, *draft.seen.gone) if _is_life_of(pod, attempt, index)]
    last = max(pods, key=lambda pod: pod.life, default=None)
    if last is not None and (known is None or known.life <= last.life):
        if _may_be_the_heads_end(draft, last):
            return False
        known = _next_life(draft, attempt, known, last)
    elif known is None and index >= (attempt.rollouts or 0):
        known = _record(draft, RolloutLife(index=index, life=1, since=timestamp(draft.now)))
    elif _was_lost_unseen(draft, attempt, known):
        known = _next_life_unseen(draft, attempt, index, known.life if known is not None else 1)
    starts = unix_seconds(known.since) if known is not None else None
    if starts is None or draft.now >= starts:
        return True
    draft.wake(starts)
    return False


def _is_life_of(pod: Pod, attempt: Attempt, index: int) -> bool:
    return (pod.role, pod.attempt, pod.index, pod.owned) == ("rollout", attempt.number, index, True)


def _may_be_the_heads_end(draft: Draft, pod: Pod) -> bool:
    """Whether a rollout that lost its head ended so recently that the end of the head may not be known yet."""
    return pod.exit_code in SECONDARY and _ended_just_now(draft, pod)


def _ended_just_now(draft: Draft, pod: Pod) -> bool:
    """Whether the trainer's container ended so recently that its pod, or another one, may follow in a moment: the
    kubelet reports the end of a container before that of its pod. A pod that has sidecars may go on."""
    if pod.ended_at is None or pod.deleting:
        return False
    until = pod.ended_at + SETTLE_SECONDS
    if not pod.ended_at <= draft.now < until:
        return False
    draft.wake(until)
    return True


def _next_life(draft: Draft, attempt: Attempt, known: RolloutLife | None, last: Pod) -> RolloutLife:
    """Record the life that follows a pod that ended, and when it starts."""
    ending = _end(draft, last) or ending_of(last)
    started = unix_seconds(known.since if known is not None and known.life == last.life else attempt.started_at)
    failures = 0
    if started is not None and draft.now < started + EARLY_SECONDS:
        failures = 1 + ((known.failures or 0) if known is not None else 0)
    policy = draft.policy
    # At once the first time: most ends are not the pod's fault.
    delay = Backoff(policy.backoff_seconds, policy.backoff_max_seconds).delay(failures - 1)
    reason = ending.reason or Failure(ending.exit_code).why
    since = timestamp(draft.now + delay)
    life = RolloutLife(index=last.index, life=last.life + 1, since=since, failures=failures or None, reason=reason)
    name = child_name(draft.job.name, "rollout", attempt.number, life.index, life.life)
    if failures < 2:
        draft.event("Warning", "RolloutReplaced", f"{ending.message} {name} replaces it.")
    faults = draft.status.node_faults
    note_node_faults(draft, attempt)
    if draft.status.node_faults != faults:
        tell_avoided(draft)
    return _record(draft, life)


def _was_lost_unseen(draft: Draft, attempt: Attempt, known: RolloutLife | None) -> bool:
    """Whether the pod of the newest life was created and has disappeared since, while no operator was looking. One that
    was refused, or was about to be created, has not. The first lives are created with the attempt's other new pods."""
    if known is not None:
        since = unix_seconds(known.since)
    else:
        new = [pod.created_at for pod in draft.pods if pod.attempt == attempt.number and pod.created_at is not None]
        since = min(new, default=unix_seconds(attempt.ready_at))
    return since is not None and draft.now > since + UNSEEN_SECONDS and refusal_of(draft) is None


def _next_life_unseen(draft: Draft, attempt: Attempt, index: int, life: int) -> RolloutLife:
    """Record the life that follows a pod which disappeared. Of an attempt that starts nobody knows whether it was ever
    created."""
    reason = None
    if attempt.ready_at is not None:
        gone, name = (child_name(draft.job.name, "rollout", attempt.number, index, each) for each in (life, life + 1))
        message = f"{gone} disappeared; no reason was reported. {name} replaces it."
        draft.event("Warning", "RolloutReplaced", message)
        reason = Reason.POD_DELETED
    return _record(draft, RolloutLife(index=index, life=life + 1, since=timestamp(draft.now), reason=reason))


def _record(draft: Draft, life: RolloutLife) -> RolloutLife:
    others = [known for known in draft.status.rollout_lives or () if known.index != life.index]
    draft.change(rollout_lives=sorted([*others, life], key=lambda each: each.index))
    return life
