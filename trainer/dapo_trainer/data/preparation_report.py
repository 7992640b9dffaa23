"""What became of a dataset's rows: counts and lengths, as JSON and as text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

# Edges of the histogram's bins, in tokens or characters; the last bin is open.
EDGES: Final = (0, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
BAR: Final = 40


@dataclass
class Lengths:
    """Histogram of prompt lengths, bins `EDGES[i] < length <= EDGES[i + 1]`."""

    unit: Literal["tokens", "characters"]
    bins: Counter[int] = field(default_factory=Counter)
    longest: int = 0

    def add(self, lengths: Iterable[int]) -> None:
        for length in lengths:
            self.bins[next((edge for edge in EDGES[1:] if length <= edge), -1)] += 1
            self.longest = max(self.longest, length)

    def rows(self) -> list[tuple[int, int | None, int]]:
        """(above, up to, prompts) for each bin, up to the last that is not empty."""
        limits: list[tuple[int, int | None, int]] = [(low, high, self.bins[high]) for low, high in pairwise(EDGES)]
        limits.append((EDGES[-1], None, self.bins[-1]))
        while limits and limits[-1][2] == 0:
            limits.pop()
        return limits


@dataclass(frozen=True)
class Overlap:
    """Prompts of one validation file that occur in the training data: exactly, and after normalization."""

    source: str
    prompts: int
    exact: int
    normalized: int


@dataclass(frozen=True)
class PreparationReport:
    """Counts of rows, then of distinct prompts: `prompts` is the sum of the six counts after it.

    `copies`: the fewest and the most rows with the same prompt.
    """

    name: str
    sources: Sequence[str]
    rows: int
    unusable_rows: int
    prompts: int
    conflicting: int
    not_integer: int
    in_validation: int
    too_long: int
    kept: int
    copies: tuple[int, int]
    token_limit: int | None
    lengths: Lengths
    overlaps: Sequence[Overlap]
    sha256: str

    def to_json(self) -> dict[str, Any]:
        bins = [{"above": low, "upTo": high, "prompts": count} for low, high, count in self.lengths.rows()]
        return {
            "name": self.name,
            "sources": list(self.sources),
            "rows": self.rows,
            "unusableRows": self.unusable_rows,
            "prompts": self.prompts,
            "copies": {"fewest": self.copies[0], "most": self.copies[1]},
            "conflicting": self.conflicting,
            "notInteger": self.not_integer,
            "inValidation": self.in_validation,
            "tooLong": self.too_long,
            "kept": self.kept,
            "tokenLimit": self.token_limit,
            "lengths": {"unit": self.lengths.unit, "longest": self.lengths.longest, "bins": bins},
            "validation": [asdict(overlap) for overlap in self.overlaps],
            "sha256": self.sha256,
        }

    def lines(self) -> list[str]:
        """The report as text: what was dropped and why, then the histogram."""
        dropped = {
            "copies with different answers": self.conflicting,
            "answer is not an integer": self.not_integer,
            "also a validation prompt": self.in_validation,
            f"longer than {self.token_limit} tokens": self.too_long,
        }
        counts = [(self.rows, "rows read")]
        counts += [(self.unusable_rows, "rows without a prompt or an answer")] if self.unusable_rows else []
        counts += [(self.prompts, f"distinct prompts, {_times(self.copies)} each")]
        counts += [(-count, f"dropped: {why}") for why, count in dropped.items() if count]
        counts += [(self.kept, "kept")]
        return [*(f"{count:>12,}  {what}" for count, what in counts), "", *self._histogram()]

    def _histogram(self) -> list[str]:
        rows = self.lengths.rows()
        most = max((count for *_, count in rows), default=1)
        heading = f"{self.lengths.unit} per prompt, including prompts dropped as too long"
        ends = [f"{low + 1:,}-{high:,}" if high is not None else f"over {low:,}" for low, high, _ in rows]
        bars = ["#" * -(-BAR * count // most) for *_, count in rows]
        shown = [f"{end:>12}  {count:>9,}  {bar}" for end, (*_, count), bar in zip(ends, rows, bars, strict=True)]
        return [heading, *(line.rstrip() for line in shown)] if rows else []


def _times(copies: tuple[int, int]) -> str:
    fewest, most = copies
    return f"{fewest:,}x" if fewest == most else f"{fewest:,} to {most:,}x"
