"""What is recorded of a step besides its samples: its groups, and the tokens of a few of them. Pure.

Two Parquet objects of a step, in the object store beside its samples: a row for each group that the step decided on,
and a row for each response of the groups that are recorded token by token. The columns are the fields below.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

# Of a step: groups; tokens of the responses that are recorded token by token; characters of a text.
MAX_GROUPS: Final = 8_192
MAX_TOKENS: Final = 1_000_000
MAX_CHARACTERS: Final = 100_000
PROMPT_CHARACTERS: Final = 2_000  # of a group's prompt; its responses have all of it


class Fate(StrEnum):
    """What became of a group, and why."""

    TRAINED = "trained"
    ALL_RIGHT = "all_right"
    ALL_WRONG = "all_wrong"
    SAME_SCORE = "same_score"
    LOST = "lost"
    SURPLUS = "surplus"
    STALE = "stale"


REASONS: Final[Mapping[Fate, str]] = {
    Fate.TRAINED: "trained on",
    Fate.ALL_RIGHT: "left out: all responses are right",
    Fate.ALL_WRONG: "left out: all responses are wrong",
    Fate.SAME_SCORE: "left out: all responses have the same score",
    Fate.LOST: "left out: fewer than two responses could be scored",
    Fate.SURPLUS: "left out: the batch was full",
    Fate.STALE: "left out: sampled from weights that are too old",
}


@dataclass(frozen=True)
class RecordedGroup:
    """One prompt's responses at one step; lists have one item for each response that counts.

    `prompt_id` is the same at every step and in every run. `rewards` are after shaping, `lengths` in tokens.
    `advantages` are empty for a group that was not trained on. Times are Unix seconds: when the prompt was submitted,
    when its last response was scored, and when the trainer decided on the group; 0 where that is not known any more.
    `tokens_recorded`: its responses are in the step's other object.
    """

    uid: str
    prompt_id: str
    source: str
    prompt: str
    ground_truth: str
    fate: str
    rewards: Sequence[float]
    lengths: Sequence[int]
    correct: Sequence[bool]
    advantages: Sequence[float]
    submitted_at: float
    finished_at: float
    decided_at: float
    tokens_recorded: bool

    @property
    def reason(self) -> str:
        """What became of it, as a phrase; a fate that a newer trainer wrote as it is."""
        return REASONS[Fate(self.fate)] if self.fate in REASONS else self.fate

    @property
    def solved(self) -> float | None:
        """The share of right responses, None if none was scored."""
        return sum(self.correct) / len(self.correct) if self.correct else None

    @property
    def waited_seconds(self) -> float | None:
        """From its last response to the trainer's decision; None if that is not known."""
        waited = self.decided_at - self.finished_at
        return max(0.0, waited) if self.finished_at and self.decided_at and math.isfinite(waited) else None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The group of a row. Raises TypeError for one without a column of ours, or with other values in it."""
        return cls(**_known(GROUP_COLUMNS, row))


@dataclass(frozen=True)
class RecordedResponse:
    """One response, token by token.

    The lists from `token_ids` on have one item for each token, or none where nothing is known: the trainer computes no
    log-probs of its own for groups that it leaves out, or where `algorithm.oldLogProbs` is Rollout. `pieces` is what a
    token is in the text. Log-probs are natural logarithms: under the policy that sampled, and under the trainer's
    before the step's updates. `weights` are the importance weights between the two that the loss is multiplied by,
    `has_loss` is false for tokens that are masked, `clipped` is 1 above the clip's upper bound, -1 below its lower
    one, and 0 within. `check` is what the check of the answer saw and found, as a JSON object.
    """

    uid: str
    number: int
    prompt: str
    response: str
    ground_truth: str
    source: str
    reward: float
    advantage: float | None
    correct: bool
    truncated: bool
    check: str
    token_ids: Sequence[int]
    pieces: Sequence[str]
    rollout_log_probs: Sequence[float]
    trainer_log_probs: Sequence[float]
    weights: Sequence[float]
    entropies: Sequence[float]
    has_loss: Sequence[bool]
    clipped: Sequence[int]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The response of a row. Raises TypeError for one without a column of ours, or with other values in it."""
        return cls(**_known(RESPONSE_COLUMNS, row))


# The Arrow types of the columns, by the names that `pyarrow.type_for_alias` takes; `[x]` is a list of x.
GROUP_COLUMNS: Final[Mapping[str, str]] = {
    "uid": "string", "prompt_id": "string", "source": "string", "prompt": "string", "ground_truth": "string",
    "fate": "string", "rewards": "[float64]", "lengths": "[int64]", "correct": "[bool]", "advantages": "[float64]",
    "submitted_at": "float64", "finished_at": "float64", "decided_at": "float64", "tokens_recorded": "bool",
}  # fmt: skip
RESPONSE_COLUMNS: Final[Mapping[str, str]] = {
    "uid": "string", "number": "int64", "prompt": "string", "response": "string", "ground_truth": "string",
    "source": "string", "reward": "float64", "advantage": "float64", "correct": "bool", "truncated": "bool",
    "check": "string", "token_ids": "[int32]", "pieces": "[string]", "rollout_log_probs": "[float32]",
    "trainer_log_probs": "[float32]", "weights": "[float32]", "entropies": "[float32]", "has_loss": "[bool]",
    "clipped": "[int8]",
}  # fmt: skip


_OPTIONAL: Final = frozenset({"advantage"})


def prompt_id(source: str, prompt: str) -> str:
    """What a prompt is known by at every step: 16 hexadecimal digits of its data source and text."""
    return hashlib.sha256(f"{source}\0{prompt}".encode("utf-8", "replace")).hexdigest()[:16]


def _known(columns: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that only a newer trainer writes are ignored."""
    found = {name: row[name] for name in columns if name in row}
    for name, value in found.items():
        if not _is(columns[name], value) and not (name in _OPTIONAL and value is None):
            raise TypeError(f"the column {name} has a value that is not {columns[name]}")
    return found


def _is(kind: str, value: Any) -> bool:
    if kind.startswith("["):
        return isinstance(value, list) and {*map(type, value)} <= _types(kind[1:-1])
    return type(value) in _types(kind)


def _types(kind: str) -> set[type]:
    """The types of Python that values of an Arrow type become."""
    kinds: Mapping[str, set[type]] = {"string": {str}, "bool": {bool}}
    return kinds.get(kind, {int, float} if kind.startswith("float") else {int})
