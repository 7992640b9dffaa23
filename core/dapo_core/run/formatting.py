"""Numbers, shares, durations, sizes, times and curves as every surface writes them. Pure.

`-` stands for what is not known. Of a curve drawn in characters, Braille gives two columns and four levels each, blocks
one column and eight levels, ASCII one and three.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich import filesize

MINUS = "\N{MINUS SIGN}"
# What controls a terminal or the direction of text, and surrogates, which no database and no terminal takes.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# By which spreadsheets tell formulas, also in the width of East Asian characters; and what is harmless of these.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
_FIGURE = re.compile(r"[-+](?:[0-9.,:/%? ]*|[0-9.]+[eE][-+]?[0-9]+)")


def duration(seconds: float) -> str:
    """`0.8s`, `42s`, `3m05s`, `12m`, `2h05m`, `4d03h`: at most two units, never below zero."""
    if 0 < seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def clock(seconds: float) -> str:
    """A duration that is counted up on a screen: `04:12`, `1:04:12`, `2d 03:04`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    if minutes < 60:
        return f"{minutes:02d}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}:{minutes:02d}"


def moment(ts: float | None) -> str:
    """Local date and time of Unix seconds, to the second."""
    return "-" if ts is None else datetime.fromtimestamp(ts).strftime("%Y-%m-%d %H:%M:%S")


def ago(then: float | None, now: float) -> str:
    """`3m05s ago`."""
    return "-" if then is None else f"{duration(int(now - then))} ago"


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, thousands set apart, an exponent only below 0.001 and from a billion on; `nan` and
    `inf` as such."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e9:
        mantissa, _, exponent = f"{value:.{max(0, digits - 1)}e}".partition("e")
        return minus(f"{_trimmed(mantissa)}e{int(exponent)}")
    if value == int(value):
        return minus(f"{value:,.0f}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return minus(_trimmed(f"{value:,.{places}f}"))


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float | None) -> str:
    """A share of one as `7.4%`."""
    return "-" if share is None else minus(f"{share:.1%}")


def size(count: int | None) -> str:
    """Bytes in the largest fitting decimal unit: `812 bytes`, `11.3 MB`."""
    return "-" if count is None else filesize.decimal(count)


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def fit(text: str, width: int) -> str:
    """At most `width` characters, an ellipsis where it was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[: max(0, width)]


def sentence(text: str) -> str:
    """`text` with its full stop, so that another sentence can follow."""
    return text if text.rstrip().endswith((".", "!", "?")) else f"{text.rstrip()}."


def minus(text: str) -> str:
    """A leading hyphen as a minus sign, which is as wide as a plus."""
    return text.replace("-", MINUS, 1) if text.startswith("-") else text


def printable(text: str) -> str:
    """Text that others wrote, with characters that control a terminal or cannot be encoded replaced; line breaks and
    tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def cell(text: str) -> str:
    """Text that others wrote, for a table that may be opened in a spreadsheet: an apostrophe before what would be a
    formula there. Numbers stay."""
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _FIGURE.fullmatch(text) else text


# Dots of a braille character that fill its left and right column from the bottom, by level 0-4.
_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:#"

Point = tuple[int, float]


@dataclass(frozen=True)
class Glyphs:
    """What a terminal can show."""

    braille: bool = True
    ascii: bool = False

    @property
    def columns(self) -> int:
        """Samples in one character."""
        return 2 if self.braille and not self.ascii else 1

    @property
    def levels(self) -> int:
        """Heights that one character can show, besides nothing."""
        if self.ascii:
            return len(_ASCII) - 1
        return 4 if self.braille else len(_BLOCKS) - 1

    def cell(self, levels: Sequence[int]) -> str:
        """The character whose columns are filled to `levels`."""
        if self.ascii:
            return _ASCII[levels[0]]
        if not self.braille or not any(levels):
            return _BLOCKS[levels[0]]
        return chr(0x2800 | _LEFT[levels[0]] | _RIGHT[levels[1]])


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` as at most `width` blocks, each the mean of its share; empty for no values."""
    cells = min(width, len(values))
    means = resample(list(enumerate(values)), cells, 0, len(values) - 1)
    return area(means, *scale(means), 1, Glyphs(braille=False))[0] if means else ""


def resample(points: Sequence[Point], count: int, first: int, last: int) -> list[float]:
    """`count` values at even distances from step `first` to `last`, between which all `points` lie.

    Where several points fall on one value it is their mean, else it lies on the line between its neighbours.
    """
    if not points or count <= 0:
        return []
    width = (last - first) / max(1, count - 1)
    bins: list[list[float]] = [[] for _ in range(count)]
    for step, value in points:
        bins[min(count - 1, round((step - first) / width)) if width else 0].append(value)
    return [
        sum(found) / len(found) if found else _between(points, first + index * width)
        for index, found in enumerate(bins)
    ]


def _between(points: Sequence[Point], at: float) -> float:
    right = min(bisect_right(points, (at, math.inf)), len(points) - 1)
    (x0, y0), (x1, y1) = points[max(0, right - 1)], points[right]
    return y1 if x1 == x0 else y0 + (y1 - y0) * min(1.0, max(0.0, (at - x0) / (x1 - x0)))


def scale(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and highest value; a flat curve gets room so that it runs through the middle."""
    low, high = min(values), max(values)
    if high - low > 1e-9 * max(1.0, abs(high)):
        return low, high
    room = max(abs(high) * 0.1, 1e-6)
    return low - room, high + room


def area(values: Sequence[float], low: float, high: float, rows: int, glyphs: Glyphs) -> list[str]:
    """The area under `values` as `rows` strings from the top, `len(values) / glyphs.columns` characters wide.

    The lowest value still fills one level, so that a curve never vanishes.
    """
    top = rows * glyphs.levels
    filled = [1 + round((min(high, max(low, value)) - low) / (high - low) * (top - 1)) for value in values]
    filled += [0] * (-len(filled) % glyphs.columns)
    return [_row(filled, (rows - 1 - row) * glyphs.levels, glyphs) for row in range(rows)]


def _row(filled: Sequence[int], below: int, glyphs: Glyphs) -> str:
    levels = [min(glyphs.levels, max(0, height - below)) for height in filled]
    return "".join(glyphs.cell(levels[at : at + glyphs.columns]) for at in range(0, len(levels), glyphs.columns))


def stacked(shares: Sequence[float], width: int) -> list[int]:
    """`width` characters divided among `shares` so that they add up; a share above zero gets at least one."""
    total = sum(shares)
    if total <= 0 or width < len(shares):
        return [0 for _ in shares]
    exact = [share / total * width for share in shares]
    cells = [max(1, int(part)) if share > 0 else 0 for part, share in zip(exact, shares, strict=True)]
    while (missing := width - sum(cells)) != 0:
        # The one furthest below its due gains, or the one furthest above it gives.
        due = [(part - held, at) for at, (part, held) in enumerate(zip(exact, cells, strict=True)) if held]
        needy = max(due) if missing > 0 else min(entry for entry in due if cells[entry[1]] > 1)
        cells[needy[1]] += 1 if missing > 0 else -1
    return cells
