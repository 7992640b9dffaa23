"""What makes two prompts the same, and which validation prompts occur in training data."""

import re
import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import duckdb

from dapo_core.errors import DataError
from dapo_trainer.data.preparation_report import Overlap
from dapo_trainer.data.source_tables import USABLE, Columns, SourceFile, batches, load
from dapo_trainer.rewards.rule_rewards import as_integer

Message = Mapping[str, str]

# The instruction of DAPO-Math-17k and its AIME 2024 as published: it asks for the form of answer that the reward reads.
PAPER_TEMPLATE: Final = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{prompt}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
# Instructions that datasets add to the same problems, and that are not part of the problem.
INSTRUCTIONS: Final = (
    *PAPER_TEMPLATE.split("{prompt}"),
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Please output the final answer within \\boxed{}.",
)
# Different typesetting of the same formula; spaces are removed as well, since LaTeX ignores them in formulas.
_TYPESETTING = re.compile(r"\\[()\[\],;:! ]|\\(?:left|right|quad|displaystyle)\b|[\s$]+")


def text_of(messages: Sequence[Message]) -> str:
    """The contents of all messages, a line for each."""
    return "\n".join(message["content"] for message in messages)


def normalized(text: str) -> str:
    """The problem alone: without instructions, case, spacing and math-mode marks, in Unicode's composed form."""
    for instruction in INSTRUCTIONS:
        text = text.replace(instruction.strip(), "")
    text = unicodedata.normalize("NFC", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return _TYPESETTING.sub("", text).lower()


def fingerprint(text: str) -> str:
    """32 hexadecimal digits, equal for equal texts."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def prompt_key(text: str) -> str:
    """Equal for prompts with the same problem; a prompt that is only an instruction is compared as it is."""
    return fingerprint(normalized(text) or text)


def label_of(answer: str) -> str:
    """An integer as plain digits, however it is written; any other answer without surrounding spaces."""
    value = as_integer(answer)
    return answer.strip() if value is None else str(value)


@dataclass(frozen=True)
class HeldOut:
    """The prompts of a validation file, as fingerprints: of their text, and of their problem."""

    source: str
    exact: frozenset[str]
    normalized: frozenset[str]

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, table: str, file: SourceFile, columns: Columns) -> "HeldOut":
        """Raises DataError when the file has neither these columns nor those of verl's chat schema."""
        try:
            load(connection, table, [file], columns)
        except DataError:
            if columns == Columns():
                raise
            connection.execute(f"DROP TABLE {table}")
            load(connection, table, [file], Columns())  # prepared earlier, when its columns were renamed
        texts = [
            text_of(row["messages"])
            for batch in batches(connection, f"SELECT messages FROM {table} WHERE {USABLE}")
            for row in batch
        ]
        return cls(file.name, frozenset(map(fingerprint, texts)), frozenset(map(prompt_key, texts)))

    def overlap(self, seen: Mapping[str, Set[str]]) -> Overlap:
        """How many of the prompts are among `seen` fingerprints, by kind: `exact` and `normalized`."""
        exact, normalized = len(self.exact & seen["exact"]), len(self.normalized & seen["normalized"])
        return Overlap(self.source, len(self.normalized), exact, normalized)


def refuse_overlap(overlaps: Sequence[Overlap]) -> None:
    """Raises DataError naming the validation files whose prompts occur in the training data."""
    shared = [
        f"{overlap.normalized} of the {overlap.prompts} prompts of {overlap.source} ({overlap.exact} exactly)"
        for overlap in overlaps
        if overlap.normalized
    ]
    if shared:
        raise DataError(
            f"The training data contain {' and '.join(shared)}: drop them with --overlap drop, "
            "or keep them with --overlap keep."
        )
