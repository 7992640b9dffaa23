"""Hundreds of answers with the published rule's verdict, ours, and what a person says: `answers.jsonl`.

`person` is the truth about an answer when no more is known than the label. An answer that says less or other than the
label is wrong, and so is one that leaves the number to be worked out, except as a single fraction.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal


@dataclass(frozen=True)
class JudgedAnswer:
    """`published` and `ours`: whether the rule accepts the response."""

    response: str
    label: str
    person: Literal["right", "wrong"]
    published: bool
    ours: bool


ANSWERS: Final = tuple(
    JudgedAnswer(**json.loads(line)) for line in Path(__file__).with_suffix(".jsonl").read_text().splitlines()
)
