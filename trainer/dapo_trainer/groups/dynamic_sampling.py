"""Dynamic sampling (paper section 3.2): which groups are kept, how many to request, when to give up. Pure."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    ALL_WRONG = "all_wrong"
    MIXED = "mixed"
    ALL_RIGHT = "all_right"
    LOST = "lost"  # fewer than two responses of it could be scored, or the rollout failed


@dataclass(frozen=True)
class GroupOutcome:
    """One prompt's responses, generated and scored. Rewards include the length penalty; lengths in tokens.

    `keys`, `tags`: where the responses are in the trainer's queue, one for each response that counts.
    """

    uid: str
    correct: int
    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    truncated: int = 0
    failures: int = 0
    keys: tuple[str, ...] = ()
    tags: tuple[dict[str, Any], ...] = ()

    @property
    def kind(self) -> Kind:
        # A single response has no others to compare with: verl would take its bare reward for an advantage.
        if not self.rewards or (self.failures and len(self.rewards) == 1):
            return Kind.LOST
        if self.correct == 0:
            return Kind.ALL_WRONG
        return Kind.ALL_RIGHT if self.correct == len(self.rewards) else Kind.MIXED


@dataclass
class Tally:
    """The groups generated for one step, by what became of them; `batch` in prompts.

    Every prompt is accounted for. What was carried into the step and what it generated is what it trained on, rejected,
    dropped as surplus, or carries on.
    """

    step: int
    batch: int
    groups: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    responses: int = 0
    tokens: int = 0
    correct: int = 0
    reward: float = 0.0
    failures: int = 0
    trained: int = 0
    dropped: int = 0
    starved: bool = False

    def add(self, outcome: GroupOutcome) -> None:
        self.groups[outcome.kind] += 1
        self.responses += len(outcome.rewards)
        self.tokens += sum(outcome.lengths)
        self.correct += outcome.correct
        self.reward += sum(outcome.rewards)
        self.failures += outcome.failures

    @property
    def generated(self) -> int:
        return sum(self.groups.values())

    def rejected(self, policy: "Policy") -> int:
        """Groups that were not worth training on, or lost."""
        return sum(count for kind, count in self.groups.items() if not policy.keeps_kind(kind))


@dataclass(frozen=True)
class Policy:
    """`keep_uniform`: groups of one verdict are trained on too (dynamic sampling off).

    `max_generated`: prompts a step may generate before it is called starved, None for no cap.
    `ahead`: ask for as many prompts as the acceptance rate suggests (the engine then runs one full wave); without
    it every rejected group is replaced by one, because a window of prompts is already in flight (and by more where
    that window has become too small for the batch: nobody else would ever fill it).
    """

    keep_uniform: bool
    max_generated: int | None
    ahead: bool

    def keeps(self, outcome: GroupOutcome) -> bool:
        return self.keeps_kind(outcome.kind)

    def keeps_kind(self, kind: Kind) -> bool:
        return kind is Kind.MIXED or (self.keep_uniform and kind is not Kind.LOST)

    def wanted(self, needed: int, ready: int, in_flight: int, rejected: int, acceptance: float, generated: int) -> int:
        """How many prompts to submit now; `rejected`: groups not replaced yet, `acceptance` in (0, 1]."""
        if not self.ahead:
            count = max(rejected, needed - ready - in_flight)
        elif ready < needed:
            count = math.ceil((needed - ready) / acceptance) - in_flight
        else:
            count = 0
        if self.max_generated is not None:
            count = min(count, self.max_generated - generated - in_flight)
        return max(count, 0)

    def starved(self, needed: int, ready: int, in_flight: int, generated: int) -> bool:
        """The cap is reached, everything asked for has come back, and the batch is still not full."""
        return self.max_generated is not None and ready < needed and in_flight == 0 and generated >= self.max_generated


class Acceptance:
    """Running share of groups that are kept: an exponential average over groups, never below `floor`."""

    def __init__(self, weight: float = 0.05, floor: float = 0.1) -> None:
        self._weight, self._floor, self._value = weight, floor, 1.0

    def add(self, kept: bool) -> None:
        self._value += self._weight * (float(kept) - self._value)

    @property
    def value(self) -> float:
        return max(self._value, self._floor)
