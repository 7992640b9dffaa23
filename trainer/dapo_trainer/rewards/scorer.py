"""Scores responses: the job's rewards, each times its weight, its length penalty, and whether a failed check counts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dapo_trainer.rewards.custom import Detail
from dapo_trainer.rewards.rule_rewards import RULES, as_integer, math, plain, settled
from dapo_trainer.rewards.statement import final_answer
from dapo_trainer.rewards.verdict import FAILED_SCORE, ResponseGroup, Verdict, right_or_wrong
from dapo_trainer.rewards.verifier import FunctionReference, Verifier

Rule = Callable[[str, str], Verdict]
ALGEBRA = FunctionReference("dapo_trainer.rewards.algebra:equal")


class RewardTerm:
    """One reward. `settings`: as `verl_config.overrides` writes them; `published`: the recipe's rule."""

    def __init__(self, settings: Mapping[str, Any], verifier: Verifier, published: Rule | None) -> None:
        self.name, self.weight = str(settings["name"]), float(settings["weight"])
        # Its processes start with the first check that needs them; integers never do.
        self._verifier = verifier
        self._rule: Rule | None = RULES.get(settings["type"])
        if settings["answer_rule"] == "published":
            assert published is not None, "the caller passes the published rule"
            self._rule = published

    async def verdicts(self, group: ResponseGroup) -> Sequence[Verdict]:
        """One for each response."""
        if self._rule is None:
            return await self._verifier.check(group)
        if self._rule is math and as_integer(group.truth) is None:
            return await self._expressions(group.responses, group.truth)
        return [self._rule(response, group.truth) for response in group.responses]

    async def close(self) -> None:
        """End the processes of the verifier."""
        await self._verifier.close()

    async def _expressions(self, responses: Sequence[str], truth: str) -> Sequence[Verdict]:
        """Each distinct answer of the group is checked once: what `settled` does not decide takes milliseconds."""
        stated = [final_answer(response) for response in responses]
        distinct = list(dict.fromkeys(answer for answer in stated if answer is not None))
        checked = await asyncio.gather(*(self._expression(answer, truth) for answer in distinct))
        verdicts = dict(zip(distinct, checked, strict=True))
        return [right_or_wrong(False, None) if answer is None else verdicts[answer] for answer in stated]

    async def _expression(self, answer: str, truth: str) -> Verdict:
        right = settled(answer, truth)
        if right is None:
            [verdict] = await self._verifier.check(ResponseGroup("", [answer], truth))
            return verdict
        return right_or_wrong(right, plain(answer))


def terms_of(reward: Mapping[str, Any], published: Rule | None) -> list[RewardTerm]:
    """The rewards of a job's settings, the main one first."""
    return [
        RewardTerm(settings, _verifier_of(settings, reward), published) for settings in (reward, *reward["additional"])
    ]


def _verifier_of(settings: Mapping[str, Any], reward: Mapping[str, Any]) -> Verifier:
    named = settings["module"] or settings["file"]
    function = ALGEBRA if named is None else FunctionReference(named, bool(settings["per_group"]))
    return Verifier(function, float(reward["timeout_seconds"]), reward["workers"])


def weighted(terms: Sequence[RewardTerm], verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on one response from those of all rewards: correct as the main one says, the scores' weighted sum.

    The other rewards' scores are details, under their names. One check that failed leaves the sum unknown.
    """
    main, *additional = verdicts
    failures = [f"{term.name}: {one.failure}" for term, one in zip(terms, verdicts, strict=True) if one.failure]
    if not additional:
        return _scaled(main, terms[0].weight)
    if failures:
        return replace(main, score=FAILED_SCORE, failure="; ".join(failures))
    score = sum(term.weight * one.score for term, one in zip(terms, verdicts, strict=True))
    details: dict[str, Detail] = {**main.details}
    for term, one in zip(terms, verdicts, strict=True):
        details[term.name] = one.score
        details |= {f"{term.name}/{name}": value for name, value in one.details.items() if one is not main}
    return Verdict(score, main.correct, main.predicted, None, details)


def _scaled(verdict: Verdict, weight: float) -> Verdict:
    if weight == 1.0 or verdict.failure is not None:
        return verdict
    return Verdict(weight * verdict.score, verdict.correct, verdict.predicted, None, verdict.details)


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
