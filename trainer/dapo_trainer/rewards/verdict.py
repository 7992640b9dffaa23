"""What is scored together, and the result for one response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dapo_trainer.rewards.custom import Detail

FAILED_SCORE: Final = -1.0


@dataclass(frozen=True)
class ResponseGroup:
    """The responses to one prompt, its label, and the data row's `extra_info`."""

    prompt: str
    responses: Sequence[str]
    truth: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """`score`: the reward before length penalties; `predicted`: the answer that was extracted, for maj@k.

    `failure` is set when the check itself failed (a crash, a timeout, NaN): then nothing is known about the response,
    and `reward.onTimeout` decides how it counts. `details`: what else a custom reward returned.
    """

    score: float
    correct: bool
    predicted: str | None = None
    failure: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)


def right_or_wrong(correct: bool, predicted: str | None) -> Verdict:
    """The paper's rule reward: +1 or -1 (section 2.4, equation 7)."""
    return Verdict(1.0 if correct else -1.0, correct, predicted)


def failed(reason: str) -> Verdict:
    """The verdict of a check that failed: the score of a wrong response, should it count."""
    return Verdict(FAILED_SCORE, False, None, reason)
