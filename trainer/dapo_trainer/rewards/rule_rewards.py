"""Rule rewards: the stated answer of a response compared with the label, as text and as numbers. Pure.

Integers follow the paper's rule. Most other labels are decided by text, fractions and closed forms, the rest by
`algebra`. The time is linear in a bounded tail of the response.
"""

import re
from fractions import Fraction
from typing import Final

from dapo_trainer.rewards.closed_forms import compared
from dapo_trainer.rewards.verdict import Verdict, right_or_wrong

# The published rule reads the end of a response only; it also bounds the time a hostile response can take.
TAIL_CHARACTERS: Final = 300
_STATEMENT = re.compile(r"answer\s*:", re.IGNORECASE)
# Digits may be grouped by three; a comma or space anywhere else separates two answers.
_INTEGER = re.compile(r"([+-]?)(\d+|[1-9]\d{0,2}(?:[, ]\d{3})+)(?:\.0*)?", re.ASCII)
_BOXED_INTEGER = re.compile(r"\\?boxed\{(.*)\}")
_NOTATION = str.maketrans({"$": None, "*": None, "\N{MINUS SIGN}": "-", "\N{NO-BREAK SPACE}": " "})
_LATEX = {"{,}": ",", "\\,": ",", "\\!": "", "\\(": "", "\\)": "", "\\[": "", "\\]": "", "\\ ": " "}
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


def stated_answer(response: str) -> str | None:
    """What follows the last `Answer:` in the response's tail, to the end of its line; None when nothing is stated."""
    tail = response[-TAIL_CHARACTERS:]
    for match in reversed(list(_STATEMENT.finditer(tail))):
        rest = tail[match.end() :].strip()
        if rest:
            return _STATEMENT.split(rest.splitlines()[0])[0].strip()
    return None


def as_integer(text: str) -> int | None:
    """`text` as an integer, without its notation (`$`, `boxed{}`, thousands separators, a final period), or None."""
    digits = text[: TAIL_CHARACTERS + 1].translate(_NOTATION)
    for written, meant in _LATEX.items():
        digits = digits.replace(written, meant)
    digits = digits.strip()
    if boxed := _BOXED_INTEGER.fullmatch(digits.rstrip(". ")):
        digits = boxed[1].strip()
    match = _INTEGER.fullmatch(digits.replace("- ", "-")) if len(digits) <= TAIL_CHARACTERS else None
    return int(match[1] + re.sub("[, ]", "", match[2])) if match else None


def exact(response: str, truth: str) -> Verdict:
    """Correct when the stated answer, or the whole response if none is stated, equals `truth` exactly."""
    stated = stated_answer(response)
    answer = response.strip() if stated is None else stated
    return right_or_wrong(answer == truth.strip(), answer[:TAIL_CHARACTERS])


def math(response: str, truth: str) -> Verdict:
    """Correct when the stated answer is the integer `truth` (the paper's data has integer answers, section 3.5).

    For other labels `scorer` calls `settled`, and `algebra` where that is None.
    """
    stated = stated_answer(response)
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
    return compared(stated, wanted)
