"""One scorer a run: the job's rule, its length penalty, and what a failed check means."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo_trainer.rewards.answers import RULES
from dapo_trainer.rewards.overlong import SoftPenalty
from dapo_trainer.rewards.verdict import Verdict
from dapo_trainer.rewards.verifier import Verifier


@dataclass(frozen=True)
class Scored:
    """`reward`: score plus length penalty, what the advantage is made of; `verdict.correct` never sees the penalty."""

    verdict: Verdict
    reward: float
    counted: bool


class Scorer:
    """`settings`: the composed configuration's `dapo` group (`verl_config.overrides`)."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        reward, penalty = settings["reward"], settings["overlong"]["penalty"]
        self._rule: Callable[[str, str], Verdict] | None = RULES.get(reward["type"])
        self._verifier = None if self._rule else Verifier(reward["module"], float(reward["timeout_seconds"]))
        self._penalty = SoftPenalty(**penalty) if penalty else None
        self._count_failures = reward["on_timeout"] == "Wrong"

    async def score(self, prompt: str, responses: Sequence[str], lengths: Sequence[int], truth: str) -> list[Scored]:
        """One result a response; `lengths` in tokens."""
        if self._rule is not None:
            verdicts = [self._rule(response, truth) for response in responses]
        else:
            assert self._verifier is not None
            verdicts = await asyncio.gather(*(self._verifier.check(prompt, r, truth) for r in responses))
        return [self._weigh(verdict, tokens) for verdict, tokens in zip(verdicts, lengths, strict=True)]

    def _weigh(self, verdict: Verdict, tokens: int) -> Scored:
        penalty = self._penalty(tokens) if self._penalty else 0.0
        return Scored(verdict, verdict.score + penalty, verdict.failure is None or self._count_failures)

    async def close(self) -> None:
        if self._verifier is not None:
            await self._verifier.close()
