"""Objects of an attempt that the API server refused: when to ask again, and when not to."""

from typing import Final

from dapo_core.backoff import Backoff
from dapo_core.run.reasons import Reason
from dapo_operator.jobs.observed import Refusal, RefusalKind
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import Ending

RETRY: Final = Backoff(5.0, 300.0)
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
    refusal = refusal_of(draft)
    if refusal is None:
        return True
    at = refusal.at + RETRY.delay(refusal.tries)
    if draft.now >= at:
        return True
    draft.wake(at)
    return False
