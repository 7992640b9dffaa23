"""Objects of an attempt that the API server refused: when to ask again, and when not to."""

from typing import Final

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.observed import Refusal, RefusalKind
from dapo_operator.jobs.planner.draft import Draft, overdue, retry_at
from dapo_operator.jobs.planner.pod_failures import Ending

_REASONS: Final[dict[RefusalKind, str]] = {
    "quota": Reason.QUOTA_EXCEEDED,
    "name": Reason.NAME_TAKEN,
    "gang": Reason.GANG_SCHEDULER_MISSING,
}


def refusal_of(draft: Draft) -> Refusal | None:
    """The API server's last refusal of an object of the newest attempt."""
    refusal, attempt = draft.seen.refusal, draft.attempt
    return refusal if refusal is not None and attempt is not None and refusal.attempt == attempt.number else None


def reason_of(refusal: Refusal) -> str:
    """The reason of condition PodsReady."""
    return _REASONS.get(refusal.kind, Reason.API_REFUSED)


def refused_for_good(draft: Draft) -> Ending | None:
    """The API server refused an object of this attempt, and would again: retrying cannot help."""
    refusal = refusal_of(draft)
    if refusal is None or refusal.kind != "permanent":
        return None
    return Ending(Reason.POD_REFUSED, f"The API server refused {refusal.what}: {refusal.message}")


def retry_is_due(draft: Draft) -> bool:
    """Whether the API server may be asked for this attempt's objects: it refused none, or the backoff is over."""
    at = retry_at(refusal_of(draft))
    if draft.now >= at:
        return True
    draft.wake(at)
    return False


def note_remaining(draft: Draft) -> None:
    """Condition PodsReady while pods that should be gone cannot be deleted; they keep their GPUs and the next attempt
    waits for them."""
    message = _remaining(draft)
    if message is None or draft.holds("PodsReady"):
        return
    known = draft.condition("PodsReady")
    if known is None or known.reason != Reason.PODS_REMAIN:
        draft.event("Warning", Reason.PODS_REMAIN, message)
    draft.set_condition("PodsReady", False, Reason.PODS_REMAIN, message)


def _remaining(draft: Draft) -> str | None:
    refusal = draft.seen.undeletable
    if refusal is not None and any(refusal.what == f"Pod {pod.name}" for pod in draft.seen.pods if not pod.deleting):
        return f"The API server refused to delete {refusal.what} (retrying): {refusal.message}"
    held = next((pod for pod in draft.seen.pods if pod.finalizers and overdue(pod, draft.now)), None)
    if held is None:
        return None
    finalizers = ", ".join(held.finalizers)
    return f"Pod {held.name} was deleted but is kept by the finalizer {finalizers}; see the controller that sets it."
