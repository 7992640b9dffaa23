"""Kubernetes' conditions as a list: one of each type, and a time that moves only when the status does."""

from collections.abc import Sequence
from typing import Literal

from dapo_core.run.status import Condition, ConditionType
from dapo_operator.kube.clock import stamp

MAX_MESSAGE = 1500


def find(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """The condition of this type, if it was ever set."""
    return next((condition for condition in conditions if condition.type == kind), None)


def holds(conditions: Sequence[Condition], kind: ConditionType) -> bool:
    """Whether the condition is there and true."""
    found = find(conditions, kind)
    return found is not None and found.status == "True"


def with_condition(
    conditions: Sequence[Condition],
    kind: ConditionType,
    status: bool,
    reason: str,
    message: str,
    now: float,
    generation: int,
) -> list[Condition]:
    """The conditions with this one set. `observedGeneration` is that at which it was last said differently."""
    old = find(conditions, kind)
    word: Literal["True", "False"] = "True" if status else "False"
    text = message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
    if old is not None and (old.status, old.reason, old.message) == (word, reason, text):
        return list(conditions)
    since = old.last_transition_time if old is not None and old.status == word else stamp(now)
    new = Condition(
        type=kind,
        status=word,
        reason=reason,
        message=text,
        last_transition_time=since,
        observed_generation=generation,
    )
    others = [condition for condition in conditions if condition.type != kind]
    return sorted([*others, new], key=lambda condition: _ORDER[condition.type])


# The order in which `kubectl describe` shows them: that of a job's life.
_ORDER: dict[ConditionType, int] = {
    "SpecAccepted": 0,
    "Suspended": 1,
    "QuotaReserved": 2,
    "PodsReady": 3,
    "Training": 4,
    "Stalled": 5,
    "Degraded": 6,
    "ProgressKnown": 7,
    "Succeeded": 8,
    "Failed": 9,
}
