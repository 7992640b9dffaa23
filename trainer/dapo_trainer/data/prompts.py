"""What makes two prompts the same, and two labels: pure text."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

from dapo_trainer.rewards.answers import as_integer

Message = Mapping[str, str]

# The instruction of DAPO-Math-17k and its AIME 2024 as published: the reward reads the answer in the form it asks for.
PAPER_TEMPLATE: Final = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{prompt}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
# Told to the model about a problem and no part of it, as data sets made from the same problems add them.
INSTRUCTIONS: Final = (
    *PAPER_TEMPLATE.split("{prompt}"),
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Please output the final answer within \\boxed{}.",
)
# Ways to set the same formula; spaces go as well, which LaTeX ignores in formulas.
_DRESSING = re.compile(r"\\[()\[\],;:! ]|\\(?:left|right|quad|displaystyle)\b|[\s$]+")


def text_of(messages: Sequence[Message]) -> str:
    return "\n".join(message["content"] for message in messages)


def normalised(text: str) -> str:
    """The problem itself: without instructions, case, spacing and math-mode marks, in Unicode's composed form."""
    for instruction in INSTRUCTIONS:
        text = text.replace(instruction.strip(), "")
    text = unicodedata.normalize("NFC", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return _DRESSING.sub("", text).lower()


def fingerprint(text: str) -> str:
    """32 hexadecimal digits: a key that is as short for a long prompt."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def prompt_key(text: str) -> str:
    """The same for prompts that ask the same; a prompt that is all instruction is told apart by its letters."""
    return fingerprint(normalised(text) or text)


def label_of(answer: str) -> str:
    """An integer as plain digits, whatever its dressing; any other answer with its outer spaces gone."""
    value = as_integer(answer)
    return answer.strip() if value is None else str(value)
