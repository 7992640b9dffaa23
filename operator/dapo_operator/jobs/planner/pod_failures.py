"""Why an attempt's pods ended, or do not get ready."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import Role
from dapo_core.run.failure_policy import NEVER_RETRIED, History, decide, failure_of, matches
from dapo_core.run.reasons import ExitCode, Reason
from dapo_operator.jobs.observed import Pod

# How long a worker that lost its head waits for the head's own last words.
SETTLE_SECONDS: Final = 20
# Exit codes of a worker that only lost its head: the head's own last words explain the end better.
SECONDARY: Final = (ExitCode.DONE, ExitCode.DISTRIBUTED)


@dataclass(frozen=True)
class Ending:
    """Why an attempt ends: for the failure policy, and as a sentence. `role` is None when the operator ends it."""

    reason: str
    message: str
    exit_code: int | None = None
    role: Role | None = None


def head_of(pods: Sequence[Pod]) -> Pod | None:
    """The head pod; None when it does not exist."""
    return next((pod for pod in pods if pod.role == "head"), None)


def head_end(pods: Sequence[Pod]) -> Ending | None:
    """How the head ended; None while it runs."""
    head = head_of(pods)
    if head is None or not head.finished:
        return None
    if head.exit_code == ExitCode.DISTRIBUTED:
        # It lost a pod that the cluster took, which is no fault of the job. No rollout's end is the head's.
        taken = next((pod for pod in pods if pod.disruption is not None and pod.role != "rollout"), head)
        return ending_of(taken)
    return ending_of(head)


def worker_end(pods: Sequence[Pod], spec: DAPOJobSpec | None, started: bool) -> Ending | None:
    """The first trainer whose end also ends the attempt. `started`: all pods were ready once."""
    ends = [ending_of(pod) for pod in pods if pod.role == "trainer" and (pod.finished or _taken(pod, started))]
    ends = [end for end in ends if not _ignored(end, spec)]
    # A worker with a cause of its own explains those that only lost their head.
    return next((end for end in ends if end.exit_code not in SECONDARY), ends[0] if ends else None)


def rollout_end(pods: Sequence[Pod], spec: DAPOJobSpec | None, started: bool) -> Ending | None:
    """The first rollout whose end, unlike others', also ends the attempt: a failure that would come again, before the
    attempt has run at all, and what a rule of the user says about rollouts."""
    for end in (ending_of(pod) for pod in pods):
        if end.exit_code in NEVER_RETRIED and not started:
            return end
        if spec is not None and _ruled(end, spec):
            return end
    return None


def _ruled(end: Ending, spec: DAPOJobSpec) -> bool:
    failure = failure_of(spec, end.exit_code, end.reason, end.message, end.role)
    rule = next((rule for rule in spec.run_policy.failure_rules if matches(rule, failure)), None)
    return rule is not None and (rule.action == "Fail" or (rule.action == "Restart" and "rollout" in rule.roles))


def head_taken(pods: Sequence[Pod], started: bool) -> Ending | None:
    """The cluster or a user is deleting the head, which has not ended yet."""
    head = head_of(pods)
    return ending_of(head) if head is not None and _taken(head, started) else None


def ending_of(pod: Pod) -> Ending:
    """The end of a pod that finished or is being deleted."""
    words = pod.words
    reason = pod.disruption or (Reason.OUT_OF_MEMORY if pod.out_of_memory else words.reason if words else "")
    if not pod.finished and not reason:
        reason = Reason.POD_DELETED
    return Ending(reason, _sentence(pod, reason), pod.exit_code, pod.role)


def _sentence(pod: Pod, reason: str) -> str:
    if pod.words is not None and pod.words.message and pod.disruption is None:
        return pod.words.message if pod.role == "head" else f"{pod.name}: {pod.words.message}"
    if pod.disruption == Reason.NODE_REJECTED:
        return f"The node of {pod.name} rejected it ({pod.detail or 'no reason was reported'})."
    if pod.disruption is not None:
        return f"The cluster removed {pod.name} ({pod.detail or reason})."
    if reason == Reason.OUT_OF_MEMORY:
        return (
            f"{pod.name} was killed because it exceeded its memory limit: raise "
            f"spec.topology.{pod.role}.resources.memory."
        )
    if not pod.finished:
        return f"{pod.name} was deleted."
    if pod.role != "head" and pod.exit_code == ExitCode.DONE:
        return f"{pod.name} ended while the head was still running."
    if pod.exit_code is None and pod.detail is not None:
        return pod.detail
    code = "without an exit code" if pod.exit_code is None else f"with exit code {pod.exit_code}"
    return f"{pod.name} ended {code}; see its log."


def _taken(pod: Pod, started: bool) -> bool:
    """Until all pods were ready, a pod that a user deleted is simply recreated; one that the cluster took is not."""
    return pod.deleting and (started or pod.disruption is not None)


def _ignored(end: Ending, spec: DAPOJobSpec | None) -> bool:
    if spec is None or not spec.run_policy.failure_rules:
        return False
    failure = failure_of(spec, end.exit_code, end.reason, end.message, end.role)
    return decide(spec.run_policy, failure, History(), 0.0).action == "ignore"


def trouble_of(pods: Sequence[Pod]) -> tuple[str, str] | None:
    """The reason and the sentence that best explain why pods are not ready: a container's before the scheduler's."""
    troubled = [pod for pod in pods if pod.trouble and not pod.ready]
    if not troubled:
        return None
    worst = min(troubled, key=lambda pod: (pod.trouble_reason == Reason.UNSCHEDULABLE, pod.name))
    more = f" (and {len(troubled) - 1} more pods)" if len(troubled) > 1 else ""
    reason = Reason.UNSCHEDULABLE if worst.trouble_reason == Reason.UNSCHEDULABLE else Reason.CONTAINER_WAITING
    trouble = (worst.trouble or "").rstrip(". ")
    remedy = next((remedy for text, remedy in _REMEDIES if text in trouble), None)
    if remedy is None:
        remedy = "Free or add nodes, or request less." if reason == Reason.UNSCHEDULABLE else ""
    return reason, f"{worst.name}{more}: {trouble}. {remedy or f'See `kubectl describe pod {worst.name}`.'}"


# The remedy, by a part of the kubelet's or the scheduler's message.
_REMEDIES: Final = (
    ("persistentvolumeclaim", "Create the claim, or correct its name."),
    ("unbound immediate PersistentVolumeClaims", "The claim has no volume: see `kubectl describe pvc`."),
    ("node affinity/selector", "Correct the node selector, or label nodes."),
    ("ImagePull", "Correct the image or its pull secret; a changed spec takes effect immediately."),
    ("InvalidImageName", "Correct the image; a changed spec takes effect immediately."),
    ("CreateContainerConfigError", "Create what it names; the kubelet retries by itself."),
)
