"""Scores responses: the job's rewards, its length penalty, and whether a failed check counts."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo_trainer.rewards.terms import Rule, terms_of, weighted
from dapo_trainer.rewards.verdict import ResponseGroup, Verdict


@dataclass(frozen=True)
class SoftPenalty:
    """The soft overlong punishment (paper section 3.4, equation 13).

    Lengths in tokens: free up to `expected_tokens`, then linear over `cache_tokens`, then -1; times `factor`.
    """

    expected_tokens: int
    cache_tokens: int
    factor: float = 1.0

    def __call__(self, tokens: int) -> float:
        """In [-factor, 0]. verl's own buffer has no lower bound; the paper's equation stops at -1."""
        over = tokens - self.expected_tokens
        return -self.factor * min(max(over / self.cache_tokens, 0.0), 1.0)


@dataclass(frozen=True)
class Scored:
    """`reward`: score plus length penalty, from which the advantage is computed; `verdict` ignores the penalty.

    `terms`: the score of each reward before its weight, by name, where the job has several.
    """

    verdict: Verdict
    reward: float
    counted: bool
    terms: Mapping[str, float] = field(default_factory=dict)


class Scorer:
    """`settings`: the composed configuration's `dapo` group (`verl_config.overrides`).

    `published`: the recipe's rule, for `reward.answerRule: published`; it is verl's, which is not imported here.
    """

    def __init__(self, settings: Mapping[str, Any], published: Rule | None = None) -> None:
        reward, penalty = settings["reward"], settings["overlong"]["penalty"]
        self._terms = terms_of(reward, published)
        self._penalty = SoftPenalty(**penalty) if penalty else None
        self._count_failures = reward["on_timeout"] == "Wrong"

    async def score(self, group: ResponseGroup, lengths: Sequence[int]) -> list[Scored]:
        """A result for each response; `lengths` in tokens."""
        by_term = await asyncio.gather(*(term.verdicts(group) for term in self._terms))
        by_response = zip(*by_term, strict=True)
        return [self._weigh(verdicts, tokens) for verdicts, tokens in zip(by_response, lengths, strict=True)]

    def _weigh(self, verdicts: Sequence[Verdict], tokens: int) -> Scored:
        verdict = weighted(self._terms, verdicts)
        penalty = self._penalty(tokens) if self._penalty else 0.0
        several = len(verdicts) > 1 and verdict.failure is None
        terms = {term.name: one.score for term, one in zip(self._terms, verdicts, strict=True)} if several else {}
        return Scored(verdict, verdict.score + penalty, verdict.failure is None or self._count_failures, terms)

    async def close(self) -> None:
        """End the processes of the verifiers."""
        for term in self._terms:
            await term.close()
