r"""Numbers in closed form, such as `\frac{2\sqrt{3}}{5}+\pi`, compared by their first sixty digits. Pure.

A grammar of its own, smaller than LaTeX: whatever might be read in two ways (a mixed number, `1/2\pi`, `\sqrt23`, a
letter) is not read at all, and is for the algebra library to judge.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from functools import lru_cache
from typing import Final

DIGITS: Final = 60
# Beyond these an intermediate result could cost more digits than there are to spare.
LARGEST, SMALLEST = Decimal("1e12"), Decimal("1e-12")
LARGEST_EXPONENT: Final = 64
DEEPEST: Final = 20
# What the library's roundings, to six decimals and to fifteen digits, can not bridge; and what no two numbers of this
# grammar that differ come close to.
FAR, FAR_RELATIVE, SAME = Decimal("1e-5"), Decimal("1e-6"), Decimal("1e-40")
# Its own: the process's carries 28 digits.
_CONTEXT: Final = Context(prec=DIGITS, traps=[InvalidOperation, DivisionByZero, Overflow])
_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\(?:frac|sqrt|cdot|times|pi)(?![a-zA-Z]) ?|[-+*/^(){}\[\]]", re.ASCII)
_TIMES: Final = ("*", "\\cdot", "\\times")
# Factors that need no sign before them; a fraction beside a number is a mixed number, and so it is to the library with
# a number in parentheses.
_JUXTAPOSED: Final = ("\\sqrt", "\\pi", "\\frac")


@dataclass(frozen=True)
class Constant:
    """`exact`: written without decimals, which may be a rounded something."""

    value: Decimal
    exact: bool


def compared(one: str, other: str) -> bool | None:
    """Whether two `plain` texts are the same number; None where this does not tell."""
    mine, theirs = constant(one), constant(other)
    if mine is None or theirs is None:
        return None
    apart = _CONTEXT.subtract(mine.value, theirs.value).copy_abs()
    size = max(mine.value.copy_abs(), theirs.value.copy_abs())
    if apart > max(FAR, FAR_RELATIVE * size):
        return False
    return True if mine.exact and theirs.exact and apart <= SAME * size and size > SMALLEST else None


@lru_cache(maxsize=512)  # a group's label is read once for all its answers
def constant(text: str) -> Constant | None:
    """What `text` is worth, or None when it is not of this grammar, complex, undefined, huge or tiny on the way."""
    tokens = _TOKEN.findall(text)
    if not tokens or sum(map(len, tokens)) != len(text):
        return None
    try:
        value = _Reader([token.rstrip() for token in tokens]).whole()
    except (_Unread, DecimalException):
        return None
    return Constant(value, exact=not any("." in token for token in tokens))


class _Unread(Exception):
    """Not of the grammar, or not to be trusted."""


class _Reader:
    """Recursive descent over tokens; every result passes `_sound`."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def whole(self) -> Decimal:
        value = self._sum()
        if self._next is not None:
            raise _Unread
        return value

    @property
    def _next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, *allowed: str) -> bool:
        if self._next not in allowed:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise _Unread

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
                if self._next in (*_TIMES, *_JUXTAPOSED, "/"):
                    raise _Unread  # whether that is divided by, too, is a matter of taste
                return divided
            elif self._next in _JUXTAPOSED and not (number and self._next == "\\frac"):
                number = False
            else:
                return value  # what is beside it unread is nobody's next token, and the text is not of the grammar
            value = self._sound(_CONTEXT.multiply(value, self._power()))

    @property
    def _is_number(self) -> bool:
        return self._next is not None and self._next[-1].isdigit()

    def _power(self) -> Decimal:
        base = self._base()
        if not self._take("^"):
            return base
        if self._next == "{":
            exponent = self._group("{", "}")
        elif self._is_number and len(self._next or "") == 1:
            exponent = self._base()
        else:
            raise _Unread
        whole = exponent == exponent.to_integral_value()
        if exponent.copy_abs() > LARGEST_EXPONENT or (base <= 0 and not whole) or self._next == "^":
            raise _Unread
        return self._sound(_CONTEXT.power(base, exponent))

    def _base(self) -> Decimal:
        token = self._next
        if token == "(":
            return self._group("(", ")")
        self._at += 1
        if token == "\\pi":
            return _PI
        if token == "\\frac":
            above = self._group("{", "}")
            return self._sound(_CONTEXT.divide(above, self._group("{", "}")))
        if token == "\\sqrt":
            return self._root()
        if token is None or not token[-1].isdigit():
            raise _Unread
        return self._sound(Decimal(token))

    def _root(self) -> Decimal:
        degree = Decimal(2)
        if self._next == "[":
            degree = self._group("[", "]")
        if self._next == "{":
            inside = self._group("{", "}")
        elif self._is_number and len(self._next or "") == 1:
            inside = self._base()
        else:
            raise _Unread
        if inside <= 0 or not 2 <= degree <= LARGEST_EXPONENT or degree != degree.to_integral_value():
            raise _Unread
        if degree == 2:
            return self._sound(_CONTEXT.sqrt(inside))
        return self._sound(_CONTEXT.power(inside, _CONTEXT.divide(Decimal(1), degree)))

    def _group(self, opening: str, closing: str) -> Decimal:
        self._expect(opening)
        value = self._sum()
        self._expect(closing)
        return value

    def _sound(self, value: Decimal) -> Decimal:
        """Of a size that leaves digits to spare. Raises _Unread."""
        if value and not SMALLEST <= value.copy_abs() <= LARGEST:
            raise _Unread
        return value
