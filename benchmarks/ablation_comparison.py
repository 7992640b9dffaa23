"""What chance alone explains in benchmarks/ablation.py: paired differences with intervals, and repeats of one run.

Rows of one seed start from the same model and data, so each is compared with the row before it within its seed. Repeats
(A/A) change nothing at all: what differs between them is chance.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ablation_results import ROWS, Result, shared_step

# Of Student's t distribution, by degrees of freedom: 97.5 % lie below.
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 14: 2.145, 19: 2.093}
LAST_STEPS = 10


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval; `n` independent values, at least two."""

    mean: float
    half: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Raises ValueError for fewer than two values."""
        if len(values) < 2:
            raise ValueError(f"{len(values)} values have no interval")
        # Between the listed degrees of freedom the next smaller one, which is wider.
        quantile = T_95[max(freedom for freedom in T_95 if freedom < len(values))]
        return cls(statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5, len(values))

    @property
    def excludes_zero(self) -> bool:
        return abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.half:.1f}"


@dataclass(frozen=True)
class Measure:
    """A number of a run; differences are multiplied by `scale` into `unit`. None where the run did not record it."""

    name: str
    unit: str
    scale: float
    value: Callable[[Result], float | None]


def measures(results: Sequence[Result]) -> list[Measure]:
    """What rows are compared by."""
    common = shared_step(results)
    return [
        Measure("accuracy at the budget", "points", 100, lambda result: result.final),
        Measure("accuracy over the last third of the budget", "points", 100, lambda result: result.late),
        Measure(f"accuracy at step {common}", "points", 100, lambda result: result.at(common)),
        Measure(
            f"mean -log p of all generated tokens, {LAST_STEPS} steps up to step {common}",
            "millinats",
            1000,
            lambda result: statistics.mean(result.nll[max(0, common - LAST_STEPS) : common]) if result.nll else None,
        ),
    ]


def differences(results: Sequence[Result], number: int, measure: Measure) -> list[float]:
    """Row `number` less the row before it, for each seed that has both, by seed."""
    first = {(result.row, result.seed): measure.value(result) for result in results if result.replicate == 0}
    seeds = sorted(seed for row, seed in first if row == number)
    pairs = [(first[number, seed], first.get((number - 1, seed))) for seed in seeds]
    return [measure.scale * (mine - before) for mine, before in pairs if mine is not None and before is not None]


def repeats(results: Sequence[Result]) -> Iterator[str]:
    """The runs of one row and seed beside one another; nothing when none was repeated."""
    repeated = {(result.row, result.seed) for result in results if result.replicate}
    for row, seed in sorted(repeated):
        runs = [result for result in results if (result.row, result.seed) == (row, seed)]
        yield f"| {len(runs)} runs of row {row}, seed {seed} | each | standard deviation |"
        yield "|---|---|---|"
        for measure in measures(results):
            values = [value for result in runs if (value := measure.value(result)) is not None]
            if len(values) > 1:
                each = ", ".join(f"{measure.scale * value:.1f}" for value in values)
                yield f"| {measure.name}, {measure.unit} | {each} | {measure.scale * statistics.stdev(values):.1f} |"


def sentences(results: Sequence[Result], rows: Sequence[int]) -> Iterator[str]:
    """One for each difference whose interval excludes zero, and how many of them chance alone would bring."""
    compared = [
        (number, measure, differences(results, number, measure)) for number in rows for measure in measures(results)
    ]
    intervals = [(number, measure, Interval.of(values)) for number, measure, values in compared if len(values) > 1]
    supported = [entry for entry in intervals if entry[2].excludes_zero]
    for number, measure, interval in supported:
        low, high = interval.mean - interval.half, interval.mean + interval.half
        yield (
            f"- Row {number} ({ROWS[number - 1].name}): {measure.name} differs from row {number - 1} by "
            f"{interval.mean:+.1f} {measure.unit} (95 % interval {low:+.1f} to {high:+.1f}, {interval.n} seeds)."
        )
    if intervals:
        yield (
            f"- {len(supported)} of {len(intervals)} intervals exclude zero; by chance alone, "
            f"{len(intervals) / 20:.1f} would."
        )


def table(results: Sequence[Result], rows: Sequence[int]) -> Iterator[str]:
    common = shared_step(results)
    yield (
        "| row | paper | seeds | accuracy | spread | to the row before, each seed | 95 % interval | "
        f"over the last third | at step {common} | steps |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for number in rows:
        runs = [result for result in results if result.row == number and result.replicate == 0]
        if not runs:
            continue
        final, row = [result.final for result in runs], ROWS[number - 1]
        spread = f"{statistics.stdev(final):.1%}" if len(final) > 1 else "-"
        yield (
            f"| {number} {row.name} | {row.paper} | {len(runs)} | {statistics.mean(final):.1%} | {spread} | "
            f"{_against_the_row_before(results, number)} | "
            f"{statistics.mean(result.late for result in runs):.1%} | "
            f"{statistics.mean(result.at(common) for result in runs):.1%} | "
            f"{statistics.mean(result.steps for result in runs):.0f} |"
        )


def _against_the_row_before(results: Sequence[Result], number: int) -> str:
    """In points of accuracy at the budget: of each seed, and the mean with its interval."""
    found = differences(results, number, measures(results)[0])
    each = ", ".join(f"{value:+.1f}" for value in found)
    return f"{each or '-'} | {Interval.of(found) if len(found) > 1 else '-'}"
