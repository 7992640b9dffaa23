"""Rule rewards: the answer of a response compared with the label by value. Pure.

An integer label wants that number, in whatever words and notation; most other labels are decided by text, fractions and
closed forms, the rest by `algebra`. The time is linear in a bounded tail of the response.
"""

import re
from fractions import Fraction
from typing import Final

from dapo_trainer.rewards.closed_forms import compared
from dapo_trainer.rewards.statement import TAIL_CHARACTERS, final_answer, stated_answer
from dapo_trainer.rewards.verdict import Verdict, right_or_wrong
from dapo_trainer.rewards.worded_numbers import worded_number

# Most answers, and every plain label: read without looking for words.
_PLAIN_DIGITS = r"-?(?:[1-9]\d{0,2}(?:,\d{3}){1,5}|\d{1,18})"
_PLAIN = re.compile(rf"\$?(?:\\boxed\{{({_PLAIN_DIGITS})\}}|({_PLAIN_DIGITS}))\$?\.?", re.ASCII)
_BOXED = re.compile(r"\\?(?:boxed|fbox)\{(.*)\}", re.DOTALL)
_MARKS = re.compile(r"\$|\\[()\[\]]|\\(?:left|right|displaystyle)(?![a-zA-Z])")
_SPACING = re.compile(r"(?:\s|\\[,;:! ])+")
# A space between two letters or digits separates them: 1 1/2 is not 11/2.
_LOOSE_SPACE = re.compile(r"(?<![^\W_]) | (?![^\W_])")
_SHORT_FRACTION = re.compile(r"\\frac(\d)(\d)")
_RATIO = re.compile(r"([+-]?)(?:(\d+)/(\d+)|\\frac\{(-?\d+)\}\{(\d+)\})", re.ASCII)
_MIXED = re.compile(r"(\d+)(?: (\d+)/|\\frac\{(\d+)\}\{)(\d+)\}?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)", re.ASCII)
_POWER = r"(?:\^|\*\*)[{(]?"
_EXPLOSIVE = re.compile(rf"\d\)?{_POWER}\d+[)}}]?{_POWER}\d|{_POWER}-?\d{{5}}|\d{{5}}\)?!|!\)?!", re.ASCII)


def as_integer(text: str) -> int | None:
    """The integer that `text` states, in whatever notation, names and units (`worded_numbers`), or None."""
    if found := _PLAIN.fullmatch(text):
        return int((found[1] or found[2]).replace(",", ""))
    number = worded_number(text.strip())
    return int(number) if number is not None and number.denominator == 1 else None


def exact(response: str, truth: str) -> Verdict:
    """Correct when the stated answer, or the whole response if none is stated, equals `truth` exactly."""
    stated = stated_answer(response)
    answer = response.strip() if stated is None else stated
    return right_or_wrong(answer == truth.strip(), answer[:TAIL_CHARACTERS])


def math(response: str, truth: str) -> Verdict:
    """Correct when the answer is the integer `truth` (the paper's data has integer answers, section 3.5).

    For other labels `scorer` calls `settled`, and `algebra` where that is None.
    """
    stated = final_answer(response)
    answer = None if stated is None else as_integer(stated)
    return right_or_wrong(answer is not None and answer == as_integer(truth), None if answer is None else str(answer))


RULES: Final = {"exact": exact, "math": math}


def plain(answer: str) -> str:
    """The answer without box, math-mode marks, spacing, sizes of fractions and a final period."""
    text = answer.strip().strip("*").replace("\N{MINUS SIGN}", "-")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _LOOSE_SPACE.sub("", _SPACING.sub(" ", _MARKS.sub("", text))).rstrip(".")
    boxed = _BOXED.fullmatch(text)
    if boxed and balanced(boxed[1]):
        text = boxed[1]
    return _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)


def balanced(text: str) -> bool:
    """Whether every brace is closed, in order; escaped braces, which denote sets, count as well."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def as_fraction(text: str) -> Fraction | None:
    """`plain` text as an exact number, if it is a quotient of integers, a mixed number or a decimal."""
    if ratio := _RATIO.fullmatch(text):
        above, below = (ratio[2], ratio[3]) if ratio[2] else (ratio[4], ratio[5])
        sign = -1 if ratio[1] == "-" else 1
        return sign * Fraction(int(above), int(below)) if int(below) else None
    if mixed := _MIXED.fullmatch(text.removeprefix("-")):
        whole, above, below = int(mixed[1]), int(mixed[2] or mixed[3]), int(mixed[4])
        return (-1 if text[0] == "-" else 1) * (whole + Fraction(above, below)) if below else None
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


def explosive(text: str) -> bool:
    """Whether its evaluation may never end: powers of powers of numbers, exponents and factorials of 5 digits."""
    return bool(_EXPLOSIVE.search(text))


def settled(answer: str, truth: str) -> bool | None:
    """Whether `answer` equals `truth`, or None where text, fractions and closed forms do not decide it.

    A decimal that is close to a number may be that number, rounded: that is left to `algebra`.
    """
    stated, wanted = plain(answer), plain(truth)
    if stated == wanted:
        return bool(stated)
    if not stated or (explosive(stated) and not explosive(wanted)):
        return False  # a policy must not learn that an answer that cannot be checked costs nothing
    number, target = as_fraction(stated), as_fraction(wanted)
    if number is not None and target is not None and (number == target or "." not in stated + wanted):
        return number == target
    same = compared(stated, wanted)
    if same is None and target is not None and worded_number(answer) == target:
        return True
    return same
