r"""Closed forms, such as `\frac{2\sqrt{3}}{5}+\pi` or `x(x+1)`, compared by the first sixty digits of their values.

Two forms with letters are the same when they are at three points. The grammar is smaller than LaTeX: whatever might be
read in two ways (a mixed number, `1/2\pi`, `\sqrt23`, a letter that is a unit or a constant) is not read at all, and is
for the algebra library to judge. Pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from functools import lru_cache
from typing import Final

# Of the letters, those that no unit, function or constant of the library begins with.
LETTERS: Final = "knpuxyz"
POINTS: Final = 3
DIGITS: Final = 60
# Beyond these an intermediate result could cost more digits than there are to spare.
LARGEST, SMALLEST = Decimal("1e12"), Decimal("1e-12")
LARGEST_EXPONENT: Final = 64
DEEPEST: Final = 20
# Of powers that are not whole: each takes half a millisecond, and this runs in the trainer's own process.
MOST_ROOTS: Final = 6
# What the library's roundings, to six decimals and to fifteen digits, cannot bridge; and what no two forms of this
# grammar that differ come close to.
FAR, FAR_RELATIVE, SAME = Decimal("1e-5"), Decimal("1e-6"), Decimal("1e-40")
# Its own: the process's carries 28 digits.
_CONTEXT: Final = Context(prec=DIGITS, traps=[InvalidOperation, DivisionByZero, Overflow])
_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
_TOKEN = re.compile(
    rf"\d+(?:\.\d+)?|\.\d+|\\(?:frac|sqrt|cdot|times|pi)(?![a-zA-Z]) ?|[-+*/^(){{}}\[\]{LETTERS}]", re.ASCII
)
_TIMES: Final = ("*", "\\cdot", "\\times")
# Factors that need no sign before them. A fraction beside a number is a mixed number.
_BESIDE: Final = ("\\sqrt", "\\pi", "\\frac", *LETTERS)


def _values(point: int) -> dict[str, Decimal]:
    """Of the letters at a point: numbers without a pattern, each negative somewhere and no two of the same sign
    everywhere, so that a root of a square is not taken for its base."""
    found = {}
    for index, letter in enumerate(LETTERS, start=1):
        size = _CONTEXT.divide(_CONTEXT.sqrt(Decimal(1000 * index + 100 * point + 7)), Decimal(40))
        found[letter] = -size if index >> point & 1 else size
    return found


_AT: Final = tuple(_values(point) for point in range(POINTS))


@dataclass(frozen=True)
class Form:
    """`values`: one, or one a point where there are letters; `exact`: without decimals, which may be roundings."""

    values: tuple[Decimal, ...]
    exact: bool


def compared(one: str, other: str) -> bool | None:
    """Whether two `plain` texts are the same; None where this does not tell."""
    mine, theirs = form(one), form(other)
    if mine is None or theirs is None:
        return None
    pairs = zip(_at_points(mine), _at_points(theirs), strict=True)
    found = {_alike(a, b) for a, b in pairs}
    if False in found:
        return False
    return True if found == {True} and mine.exact and theirs.exact else None


def _at_points(form: Form) -> Sequence[Decimal]:
    return form.values if len(form.values) == POINTS else form.values * POINTS


def _alike(one: Decimal, other: Decimal) -> bool | None:
    apart, size = _CONTEXT.subtract(one, other).copy_abs(), max(one.copy_abs(), other.copy_abs())
    if apart > max(FAR, FAR_RELATIVE * size):
        return False
    return True if apart <= SAME * size and size > SMALLEST else None


@lru_cache(maxsize=512)  # a group's label is read once for all its answers
def form(text: str) -> Form | None:
    """What `text` is worth, or None when it is not of this grammar, complex, undefined, huge or tiny on the way.

    A letter by itself is a name, which the library compares in ways of its own.
    """
    tokens = _TOKEN.findall(text)
    if sum(map(len, tokens)) != len(text) or not any(token[-1] not in LETTERS + "()" for token in tokens):
        return None
    tokens = [token.rstrip() for token in tokens]
    points = _AT if set(LETTERS) & set(tokens) else _AT[:1]
    try:
        values = tuple(_Reader(tokens, letters).whole() for letters in points)
    except (_Unread, DecimalException):
        return None
    return Form(values, exact=not any("." in token for token in tokens))


class _Unread(Exception):
    """Not of the grammar, or not to be trusted."""


class _Reader:
    """Recursive descent over tokens, worked out as they are read; every result passes `_sound`."""

    def __init__(self, tokens: Sequence[str], letters: dict[str, Decimal]) -> None:
        self._tokens, self._letters, self._at = tokens, letters, 0
        self._depth = self._roots = 0

    def whole(self) -> Decimal:
        value = self._sum()
        if self._next is not None:
            raise _Unread
        return value

    @property
    def _next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    @property
    def _is_number(self) -> bool:
        return self._next is not None and self._next[-1].isdigit()

    def _take(self, *allowed: str) -> bool:
        if self._next not in allowed:
            return False
        self._at += 1
        return True

    def _sum(self) -> Decimal:
        """A sign stands first or between terms; two in a row are not read."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise _Unread
        negative = self._next == "-"
        self._take("-", "+")
        total = self._signed(negative)
        while self._next in ("-", "+"):
            negative = self._next == "-"
            self._at += 1
            total = self._sound(_CONTEXT.add(total, self._signed(negative)))
        self._depth -= 1
        return total

    def _signed(self, negative: bool) -> Decimal:
        value = self._product()
        return value.copy_negate() if negative else value

    def _product(self) -> Decimal:
        number = self._is_number
        value = self._power()
        while True:
            if self._take(*_TIMES):
                number = self._is_number
            elif self._take("/"):
                divided = self._sound(_CONTEXT.divide(value, self._power()))
                if self._next in (*_TIMES, *_BESIDE, "/", "("):
                    raise _Unread  # whether that is divided by, too, is a matter of taste
                return divided
            elif self._next in _BESIDE and not (number and self._next == "\\frac"):
                number = False
            elif self._next == "(" and self._is_sum():
                number = False
            else:
                return value  # what is beside it unread is nobody's next token, and the text is not of the grammar
            value = self._sound(_CONTEXT.multiply(value, self._power()))

    def _is_sum(self) -> bool:
        """Whether the parentheses ahead hold a sum with a letter, a factor then; the library adds `2(11)`."""
        inside = self._tokens[self._at + 1 :]
        inside = inside[: inside.index(")")] if ")" in inside else []
        return "(" not in inside and bool({"+", "-"} & set(inside[1:])) and bool(set(LETTERS) & set(inside))

    def _power(self) -> Decimal:
        base = self._base()
        if not self._take("^"):
            return base
        exponent = self._argument()
        whole = exponent == exponent.to_integral_value()
        if exponent.copy_abs() > LARGEST_EXPONENT or (base <= 0 and not whole) or self._next == "^":
            raise _Unread
        return self._sound(_CONTEXT.power(base, exponent) if whole else self._fractional(base, exponent))

    def _base(self) -> Decimal:
        token = self._next
        if token == "(":
            return self._group("(", ")")
        if token is None:
            raise _Unread
        self._at += 1
        if token in self._letters:
            return self._letters[token]
        if token == "\\pi":
            return _PI
        if token == "\\frac":
            above = self._group("{", "}")
            return self._sound(_CONTEXT.divide(above, self._group("{", "}")))
        if token == "\\sqrt":
            return self._root()
        if not token[-1].isdigit():
            raise _Unread
        return self._sound(Decimal(token))

    def _root(self) -> Decimal:
        degree = self._group("[", "]") if self._next == "[" else Decimal(2)
        inside = self._argument()
        if inside <= 0 or not 2 <= degree <= LARGEST_EXPONENT or degree != degree.to_integral_value():
            raise _Unread
        if degree == 2:
            return self._sound(_CONTEXT.sqrt(inside))
        return self._sound(self._fractional(inside, _CONTEXT.divide(Decimal(1), degree)))

    def _fractional(self, base: Decimal, exponent: Decimal) -> Decimal:
        self._roots += 1
        if self._roots > MOST_ROOTS:
            raise _Unread
        return _CONTEXT.power(base, exponent)

    def _argument(self) -> Decimal:
        """Of a root or a power: a group, or one digit or letter, of which nobody doubts where it ends."""
        if self._next == "{":
            return self._group("{", "}")
        if self._next not in (*LETTERS, *"0123456789"):
            raise _Unread
        return self._base()

    def _group(self, opening: str, closing: str) -> Decimal:
        if not self._take(opening):
            raise _Unread
        value = self._sum()
        if not self._take(closing):
            raise _Unread
        return value

    def _sound(self, value: Decimal) -> Decimal:
        """Of a size that leaves digits to spare. Raises _Unread."""
        if value and not SMALLEST <= value.copy_abs() <= LARGEST:
            raise _Unread
        return value
