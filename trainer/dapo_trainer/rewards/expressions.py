"""Answers that are no integers, as far as text, fractions and digits settle them; the rest is an algebra's. Pure."""

import re
from fractions import Fraction

from dapo_trainer.rewards.closed_forms import compared

_BOXED = re.compile(r"\\?(?:boxed|fbox)\{(.*)\}", re.DOTALL)
_MARKS = re.compile(r"\$|\\[()\[\]]|\\(?:left|right|displaystyle)(?![a-zA-Z])")
_SPACING = re.compile(r"(?:\s|\\[,;:! ])+")
# A space between two letters or digits parts them: 1 1/2 is not 11/2.
_LOOSE_SPACE = re.compile(r"(?<![^\W_]) | (?![^\W_])")
_SHORT_FRACTION = re.compile(r"\\frac(\d)(\d)")
_RATIO = re.compile(r"([+-]?)(?:(\d+)/(\d+)|\\frac\{(-?\d+)\}\{(\d+)\})", re.ASCII)
_MIXED = re.compile(r"(\d+)(?: (\d+)/|\\frac\{(\d+)\}\{)(\d+)\}?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)", re.ASCII)
_POWER = r"(?:\^|\*\*)[{(]?"
_EXPLOSIVE = re.compile(rf"\d\)?{_POWER}\d+[)}}]?{_POWER}\d|{_POWER}-?\d{{5}}|\d{{5}}\)?!|!\)?!", re.ASCII)


def plain(answer: str) -> str:
    """Without a box around it, math marks, spacing, sizes of fractions and a final point."""
    text = answer.strip().strip("*").replace("\N{MINUS SIGN}", "-")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _LOOSE_SPACE.sub("", _SPACING.sub(" ", _MARKS.sub("", text))).rstrip(".")
    boxed = _BOXED.fullmatch(text)
    if boxed and balanced(boxed[1]):
        text = boxed[1]
    return _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)


def balanced(text: str) -> bool:
    """Whether every brace is closed, in order; escaped ones are braces of a set and count alike."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def as_fraction(text: str) -> Fraction | None:
    """`plain` text as an exact number, when it is a quotient of integers, a mixed number or a decimal."""
    if ratio := _RATIO.fullmatch(text):
        above, below = (ratio[2], ratio[3]) if ratio[2] else (ratio[4], ratio[5])
        sign = -1 if ratio[1] == "-" else 1
        return sign * Fraction(int(above), int(below)) if int(below) else None
    if mixed := _MIXED.fullmatch(text.removeprefix("-")):
        whole, above, below = int(mixed[1]), int(mixed[2] or mixed[3]), int(mixed[4])
        return (-1 if text[0] == "-" else 1) * (whole + Fraction(above, below)) if below else None
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


def explosive(text: str) -> bool:
    """Whether working it out may take for ever: powers of powers of numbers, exponents and factorials of 5 digits."""
    return bool(_EXPLOSIVE.search(text))


def settled(answer: str, truth: str) -> bool | None:
    """Whether `answer` is `truth`, or None where text, fractions and digits do not tell.

    A decimal that is nearly a number may be it, rounded: that is not for here to say.
    """
    ours, theirs = plain(answer), plain(truth)
    if ours == theirs:
        return bool(ours)
    if not ours or (explosive(ours) and not explosive(theirs)):
        return False  # a policy must not learn that an answer nobody can check costs nothing
    mine, wanted = as_fraction(ours), as_fraction(theirs)
    if mine is not None and wanted is not None and (mine == wanted or "." not in ours + theirs):
        return mine == wanted
    return compared(ours, theirs)
