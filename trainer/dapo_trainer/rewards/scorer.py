"""Scores responses: the job's reward rule, its length penalty, and whether a failed check counts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo_trainer.rewards.rule_rewards import RULES, as_integer, math, plain, settled
from dapo_trainer.rewards.statement import final_answer
from dapo_trainer.rewards.verdict import Verdict, right_or_wrong
from dapo_trainer.rewards.verifier import Verifier

Rule = Callable[[str, str], Verdict]
ALGEBRA = "dapo_trainer.rewards.algebra:equal"


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
    """`reward`: score plus length penalty, from which the advantage is computed; `verdict` ignores the penalty."""

    verdict: Verdict
    reward: float
    counted: bool


class Scorer:
    """`settings`: the composed configuration's `dapo` group (`verl_config.overrides`).

    `published`: the recipe's rule, for `reward.answerRule: published`; it is verl's, which is not imported here.
    """

    def __init__(self, settings: Mapping[str, Any], published: Rule | None = None) -> None:
        reward, penalty = settings["reward"], settings["overlong"]["penalty"]
        self._rule: Rule | None = RULES.get(reward["type"])
        if reward["answer_rule"] == "published":
            assert published is not None, "whoever builds the scorer brings the published rule"
            self._rule = published
        # Its processes start with the first check that needs them; integers never do.
        self._verifier = Verifier(reward["module"] or ALGEBRA, float(reward["timeout_seconds"]))
        self._penalty = SoftPenalty(**penalty) if penalty else None
        self._count_failures = reward["on_timeout"] == "Wrong"

    async def score(self, prompt: str, responses: Sequence[str], lengths: Sequence[int], truth: str) -> list[Scored]:
        """A result for each response; `lengths` in tokens."""
        verdicts = await self._verdicts(prompt, responses, truth)
        return [self._weigh(verdict, tokens) for verdict, tokens in zip(verdicts, lengths, strict=True)]

    async def _verdicts(self, prompt: str, responses: Sequence[str], truth: str) -> Sequence[Verdict]:
        if self._rule is None:
            return await asyncio.gather(*(self._verifier.check(prompt, r, truth) for r in responses))
        if self._rule is math and as_integer(truth) is None:
            return await self._expressions(responses, truth)
        return [self._rule(response, truth) for response in responses]

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
            return await self._verifier.check("", answer, truth)
        return right_or_wrong(right, plain(answer))

    def _weigh(self, verdict: Verdict, tokens: int) -> Scored:
        penalty = self._penalty(tokens) if self._penalty else 0.0
        return Scored(verdict, verdict.score + penalty, verdict.failure is None or self._count_failures)

    async def close(self) -> None:
        """End the processes of the verifier."""
        await self._verifier.close()
