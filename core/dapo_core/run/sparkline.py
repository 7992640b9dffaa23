"""A curve as one or a few rows of characters. Pure.

Braille gives two columns and four levels a character, blocks one column and eight levels, ASCII one and three.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

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
