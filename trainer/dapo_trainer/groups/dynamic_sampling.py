"""Dynamic sampling (paper section 3.2): which groups are kept, how many to request, when to give up. Pure."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

Row = TypeVar("Row")
# Sums of weighted scores differ in their last digits though the scores are equal.
LEAST_SPREAD: Final = 1e-6


class Kind(StrEnum):
    ALL_WRONG = "all_wrong"
    MIXED = "mixed"
    ALL_RIGHT = "all_right"
    LOST = "lost"  # fewer than two responses of it could be scored, or the rollout failed


@dataclass(frozen=True)
class GroupOutcome:
    """One prompt's responses, generated and scored. Rewards include the length penalty; lengths in tokens.

    `nll`: negative log-probabilities of all tokens of `lengths` under the policy that sampled them, added up, in nats.
    `spread`: the largest score less the smallest, without length penalty. `terms`: sums of the scores of each reward,
    by name, where the job has several. `keys`, `tags`: where the responses are in the trainer's queue, one for each
    response that counts.
    `order`: the prompt's place in the order of submission; 0 for a group that was restored with a checkpoint.
    """

    uid: str
    correct: int
    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    truncated: int = 0
    failures: int = 0
    spread: float = 0.0
    terms: Mapping[str, float] = field(default_factory=dict)
    nll: float = 0.0
    keys: tuple[str, ...] = ()
    tags: tuple[dict[str, Any], ...] = ()
    order: int = 0

    @property
    def oldest_version(self) -> int:
        """The oldest weights that a token of it was sampled from, by verl's count of steps."""
        return min(int(tag["min_global_steps"]) for tag in self.tags)

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
    dropped as surplus or as stale, or carries on.
    """

    step: int
    batch: int
    groups: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    responses: int = 0
    tokens: int = 0
    correct: int = 0
    truncated: int = 0
    reward: float = 0.0
    nll: float = 0.0
    failures: int = 0
    terms: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    trained: int = 0
    dropped: int = 0
    stale: int = 0
    starved: bool = False

    def add(self, outcome: GroupOutcome, kept: bool) -> None:
        """Count a group; `rejected` are those that are not worth training on, or lost."""
        self.rejected += not kept
        self.terms.update(outcome.terms)
        self.groups[outcome.kind] += 1
        self.responses += len(outcome.rewards)
        self.tokens += sum(outcome.lengths)
        self.correct += outcome.correct
        self.truncated += outcome.truncated
        self.reward += sum(outcome.rewards)
        self.nll += outcome.nll
        self.failures += outcome.failures

    @property
    def generated(self) -> int:
        return sum(self.groups.values())


@dataclass(frozen=True)
class Policy:
    """`keep_uniform`: groups of one verdict are trained on too (dynamic sampling off). `by_spread`: a group is worth
    training on when its scores differ, whatever is correct.

    `max_generated`: prompts a step may generate before it is called starved, None for no cap.
    `ahead`: generate in waves, each of as many prompts as the acceptance rate suggests (the engine then runs one full
    wave); without it every rejected group is replaced by one, because a window of prompts is already in flight (and by
    more where that window has become too small for the batch: nobody else would ever fill it).
    """

    keep_uniform: bool
    max_generated: int | None
    ahead: bool
    by_spread: bool = False

    def keeps(self, outcome: GroupOutcome) -> bool:
        if self.keep_uniform or outcome.kind is Kind.LOST:
            return outcome.kind is not Kind.LOST
        return outcome.spread > LEAST_SPREAD if self.by_spread else outcome.kind is Kind.MIXED

    def wanted(self, needed: int, ready: int, in_flight: int, rejected: int, acceptance: float, generated: int) -> int:
        """How many prompts to submit now; `rejected`: groups not replaced yet, `acceptance` in (0, 1]."""
        if self.ahead:
            count = _wave(needed, ready, in_flight, acceptance, generated)
        else:
            count = max(rejected, needed - ready - in_flight)
        if self.max_generated is not None:
            count = min(count, self.max_generated - generated - in_flight)
        return max(count, 0)

    def starved(self, needed: int, ready: int, in_flight: int, generated: int) -> bool:
        """The cap is reached, everything asked for has come back, and the batch is still not full."""
        return self.max_generated is not None and ready < needed and in_flight == 0 and generated >= self.max_generated


# A wave of more would mostly be waste where the acceptance rate is wrong, and may last longer than the stall timeout.
WAVE_BATCHES: Final = 2
# Of the spread of how many groups a wave keeps: about one wave in six is too small then, without it every other one. A
# second wave is small, and lasts as long as its longest response nevertheless.
MARGIN: Final = 1.0


def _wave(needed: int, ready: int, in_flight: int, acceptance: float, generated: int) -> int:
    """While groups of a wave are in flight, only what is missing even if all of them are kept.

    What has come back of a wave says little about the rest: prompts whose responses are short come back first, and
    these are the easy ones. A step passes two batches only where these cannot fill its own.
    """
    missing = max(0, needed - ready - in_flight)
    left = WAVE_BATCHES * needed - in_flight
    if missing <= left - generated:
        left -= generated
    kept = missing + MARGIN * math.sqrt(missing * (1 - acceptance))
    return min(math.ceil(kept / acceptance), left)


class Acceptance:
    """The share of generated groups that are kept, over the newest finished waves; 1 before the first of them.

    A wave counts when all its groups have come back, never in part. `memory`: about how many groups are remembered.
    """

    FLOOR: Final = 0.1

    def __init__(self, memory: int = 256) -> None:
        self.memory = memory
        self._kept = self._seen = 0.0
        self._wave: list[bool] = []

    def add(self, kept: bool) -> None:
        self._wave.append(kept)

    def end_wave(self) -> None:
        """Every group of the wave has been added."""
        before = min(1.0, max(0.0, self.memory - len(self._wave)) / self._seen) if self._seen else 0.0
        self._kept = self._kept * before + sum(self._wave)
        self._seen = self._seen * before + len(self._wave)
        self._wave = []

    @property
    def value(self) -> float:
        return max(self._kept / self._seen, self.FLOOR) if self._seen else 1.0

    def saved(self) -> dict[str, float]:
        """What `restore` takes, for a checkpoint."""
        return {"kept": self._kept, "seen": self._seen}

    def restore(self, saved: Mapping[str, float]) -> None:
        self._kept, self._seen = float(saved["kept"]), float(saved["seen"])


def shuffled(rows: Sequence[Row], seed: int, step: int) -> list[Row]:
    """`rows` in an order that follows from `seed` and `step` alone.

    Groups come in the order of their longest response, or of the data file: mini-batches that are cut from either are
    no samples of the batch.
    """
    order = list(rows)
    random.Random(f"{seed}/{step}").shuffle(order)
    return order
