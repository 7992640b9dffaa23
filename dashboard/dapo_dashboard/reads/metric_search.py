"""Which metrics a comparison draws, and in which order: those that are pinned, then those that a pattern finds or the
usual ones. Pure.

Patterns are matched by RE2, through pyarrow, in a time that grows with their length and the names', both of which are
limited. Python's `re` tries every way to match: a short pattern in a link could hold the server for all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dapo_core.errors import DapoError
from dapo_core.run.formatting import printable

MAX_PATTERN: Final = 200
# Of all names together, many times what a run of ours has. Who writes a run may give it any number of metrics.
MAX_CHARACTERS: Final = 100_000
# What a page can be scrolled through, and one query reads.
MAX_CHARTS: Final = 40


class PatternError(DapoError):
    """A pattern that is none, or is too long."""

    user_mistake = True


@dataclass(frozen=True)
class Choice:
    """What a viewer asks for besides the usual metrics. With a `pattern`, those whose names it finds are drawn instead
    of the usual ones."""

    more: Sequence[str] = ()
    pinned: Sequence[str] = ()
    pattern: str = ""


@dataclass(frozen=True)
class ChosenMetrics:
    """The metrics to draw, in order; `left_out` is how many more there would be."""

    names: Sequence[str]
    left_out: int = 0


def matching(names: Sequence[str], pattern: str) -> list[str]:
    """Those of the names in which the regular expression (RE2) finds something, in upper or lower case. Names beyond
    MAX_CHARACTERS are not searched. Raises PatternError."""
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"The pattern has {len(pattern)} characters: shorten it to {MAX_PATTERN}.")
    if pattern != printable(pattern):
        raise PatternError("The pattern has characters that cannot be printed: remove them.")
    if "{" in pattern or r"\p" in pattern.lower():
        raise PatternError(
            f"{pattern!r} has a repetition count or a class of Unicode, by which a short pattern becomes a very long "
            "one: use `*`, `+`, `?` and classes such as `[a-z]` or `\\w`."
        )
    names = list(_searched(names))
    try:
        found = pc.match_substring_regex(pa.array(names, pa.string()), pattern, ignore_case=True)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise PatternError(
            f"{pattern!r} is not a valid regular expression: {reason}. Write `entropy|length`, `^actor/` or `mean$`; "
            "look-around and backreferences are not supported."
        ) from None
    return [name for name, is_match in zip(names, found.to_pylist(), strict=True) if is_match]


def _searched(names: Iterable[str]) -> Iterable[str]:
    sizes = accumulate(map(len, names := list(names)))
    return (name for name, size in zip(names, sizes, strict=True) if size <= MAX_CHARACTERS)


def chosen(names: Sequence[str], usual: Sequence[str], choice: Choice) -> ChosenMetrics:
    """What is drawn of the metrics `names`: pinned ones first, then what the pattern finds, or without one the usual
    ones, then the others that were asked for. Raises PatternError."""
    found = matching(names, choice.pattern) if choice.pattern else usual
    known = set(names)
    every = [name for name in dict.fromkeys((*choice.pinned, *found, *choice.more)) if name in known]
    return ChosenMetrics(every[:MAX_CHARTS], max(0, len(every) - MAX_CHARTS))
