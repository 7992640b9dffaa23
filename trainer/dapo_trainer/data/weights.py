"""How often each row of weighted training files occurs in an epoch. Pure."""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

# An epoch is a list of row numbers in memory, and is shuffled as a whole.
LONGEST_EPOCH: Final = 5_000_000


def draws(rows: Sequence[int], weights: Sequence[float]) -> list[int]:
    """How many prompts of each file an epoch has: in the proportion of the weights, and no fewer than the file's rows.

    The file whose rows are many for its weight occurs once; the others are repeated.
    """
    scale = max(count / weight for count, weight in zip(rows, weights, strict=True))
    return [max(count, round(weight * scale)) for count, weight in zip(rows, weights, strict=True)]


def epoch(rows: Sequence[int], weights: Sequence[float], seed: int) -> list[int]:
    """The row of each prompt of an epoch, numbered through all files, file by file.

    The rows of a file occur equally often, or some of them, which `seed` chooses, once more.
    """
    starts = [0, *accumulate(rows)]
    return [
        starts[number] + row
        for number, (count, drawn) in enumerate(zip(rows, draws(rows, weights), strict=True))
        for row in _repeated(count, drawn, random.Random(f"{seed}/{number}"))
    ]


def _repeated(rows: int, drawn: int, chooser: random.Random) -> Iterator[int]:
    passes, rest = divmod(drawn, rows)
    for _ in range(passes):
        yield from range(rows)
    yield from sorted(chooser.sample(range(rows), rest))
