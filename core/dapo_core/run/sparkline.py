"""A curve in one line of text. Pure."""

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` as at most `width` blocks, each the mean of its share; empty for no values."""
    if not values:
        return ""
    cells = min(width, len(values))
    means = [_mean(values[at * len(values) // cells : (at + 1) * len(values) // cells]) for at in range(cells)]
    low, high = min(means), max(means)
    if high == low:
        return _BLOCKS[3] * cells
    return "".join(_BLOCKS[round((mean - low) / (high - low) * (len(_BLOCKS) - 1))] for mean in means)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
