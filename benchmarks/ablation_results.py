"""What benchmarks/ablation.py measures: the rows of the paper's Table 1, a result for each run, and their tables."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row: its name, the paper's result, and what it adds to the row before (fields of `algorithm`)."""

    name: str
    paper: int
    adds: Sequence[str]


ROWS = (
    Row("naive GRPO", 30, ()),
    Row("+ overlong filtering", 36, ("overlong.filter=true",)),
    Row("+ clip-higher", 38, ("clipHigh=0.28",)),
    Row("+ soft overlong punishment", 41, ("overlong.penalty={expectedTokens: 32, cacheTokens: 8}",)),
    Row("+ token-level loss", 42, ("lossAggregation=TokenMean",)),
    Row("+ dynamic sampling (DAPO)", 50, ("dynamicSampling.enabled=true",)),
)


@dataclass(frozen=True)
class Result:
    """One run. Curves are [step, tokens generated until then, value]; times are seconds of each step.

    `replicate` numbers the repeats of one row and seed from 0; `nll` is empty in results of versions without it.
    """

    row: int
    seed: int
    token_budget: int
    steps: int
    accuracy: list[tuple[int, int, float]]
    generated: list[int]
    trained: list[int]
    seconds: list[float]
    generation_seconds: list[float]
    entropy: list[float]
    length: list[float]
    truncated: list[float]
    replicate: int = 0
    nll: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(self.generated)

    @property
    def final(self) -> float:
        """Accuracy at the budget, interpolated between the validations around it."""
        (_, before, low), (_, after, high) = self.accuracy[-2:]
        return low + (high - low) * (self.token_budget - before) / (after - before)

    @property
    def late(self) -> float:
        """The mean of the validations in the last third of the budget: a single one is a sample of 512 responses."""
        return statistics.mean(value for _, tokens, value in self.accuracy if tokens * 3 >= self.token_budget * 2)

    def at(self, step: int) -> float:
        """Accuracy at a step that was validated."""
        return next(value for at, _, value in self.accuracy if at == step)


def read(file: Path) -> Result:
    content: dict[str, Any] = json.loads(file.read_text())
    return Result(**{**content, "accuracy": [(int(s), int(t), float(v)) for s, t, v in content["accuracy"]]})


def shared_step(results: Sequence[Result]) -> int:
    """The last step at which every run was validated."""
    return max(set.intersection(*({step for step, _, _ in result.accuracy} for result in results)))


def price(results: Sequence[Result]) -> Iterator[str]:
    """The cost of dynamic sampling: rows 5 and 6, which differ in nothing else, by fifths of the token budget."""
    yield "| of the budget | generated per token trained on | seconds per step: with | without | of these generating |"
    yield "|---|---|---|---|---|"
    parts = [(f"{fifth * 20} to {fifth * 20 + 20} %", range(fifth, fifth + 1)) for fifth in range(5)]
    for name, fifths in [*parts, ("all of it", range(5))]:
        with_, without = (_steps([r for r in results if r.row == number], fifths) for number in (6, 5))
        if not with_ or not without:
            return
        ratio = sum(g for g, _, _, _ in with_) / max(1, sum(t for _, t, _, _ in with_))
        seconds, plain = (statistics.median(s for _, _, s, _ in steps) for steps in (with_, without))
        shares = [statistics.median(g for _, _, _, g in steps) for steps in (with_, without)]
        yield (f"| {name} | {ratio:.2f} | {seconds:.2f} | {plain:.2f} | {shares[0]:.2f} and {shares[1]:.2f} |")


def _steps(results: Sequence[Result], fifths: range) -> list[tuple[int, int, float, float]]:
    """Of the steps in some fifths of the budget: tokens generated and trained on, seconds in all and generating."""
    steps = []
    for result in results:
        until = 0
        columns = zip(result.generated, result.trained, result.seconds, result.generation_seconds, strict=True)
        for generated, trained, seconds, generating in columns:
            if until * 5 // result.token_budget in fifths:
                steps.append((generated, trained, seconds, generating))
            until += generated
    return steps


BEGIN, END = "<!-- results of benchmarks/ablation.py -->", "<!-- end of the results -->"


def write(page: Path, text: str) -> None:
    """Replace the results between the page's two marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
