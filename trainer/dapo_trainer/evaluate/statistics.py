"""Estimates of a model's accuracy from scored groups, with their uncertainty. Pure.

There are two uncertainties. The interval asks how another draw of prompts of this kind would have come out: a
percentile bootstrap over whole prompts (95 %), since the samples of one prompt are not independent. The
sampling error asks how another k samples of these very prompts would have come out: what two checkpoints on one
benchmark are compared by.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

from dapo_trainer.groups.evaluated import Evaluated, majority_is_right

RESAMPLES = 2000
LEVEL = 0.95
_CELLS_AT_ONCE = 4_000_000  # numbers of resampled tables held in memory


@dataclass(frozen=True)
class IntervalEstimate:
    """A mean over prompts; `low` and `high` bound the 95 % interval, None where one prompt gives none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LengthSummary:
    """Response lengths in tokens."""

    mean: float
    median: float
    p95: float
    longest: int


@dataclass(frozen=True)
class Summary:
    """One set, or one subset of it. Shares are in [0, 1]; `samples` is k, the responses for each prompt.

    `sampling_error` is the standard error of mean@k for these prompts, None for k of 1. `pass_at` goes by powers of
    two up to k. `unstated`: responses that state no answer; `failures`: checks that failed themselves,
    which count as wrong.
    """

    prompts: int
    samples: int
    mean: IntervalEstimate
    sampling_error: float | None
    pass_at: Mapping[int, IntervalEstimate]
    majority: IntervalEstimate
    lengths: LengthSummary
    truncated: float
    unstated: float
    failures: int


def pass_at(k: int, samples: int, correct: int) -> float:
    """Chance that k of `samples` responses, drawn without replacement, hold a right one: unbiased for any k.

    Chen et al. 2021 (arXiv 2107.03374), equation 1. Raises ValueError for k beyond the samples.
    """
    if not 0 < k <= samples:
        raise ValueError(f"pass@{k} cannot be estimated from {samples} samples")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def powers(samples: int) -> list[int]:
    """1, 2, 4, ... and `samples` itself."""
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})


def summarise(groups: Sequence[Evaluated], seed: int = 0) -> Summary:
    """Of at least one group, all with as many responses. `seed` is the bootstrap's: same groups, same interval."""
    samples = len(groups[0].verdicts)
    ks = powers(samples)
    table = np.array(
        [
            [g.correct / samples, majority_is_right(g.verdicts), *(pass_at(k, samples, g.correct) for k in ks)]
            for g in groups
        ],
        dtype=float,
    )
    mean, majority, *passes = _estimates(table, seed)
    verdicts = [verdict for group in groups for verdict in group.verdicts]
    return Summary(
        prompts=len(groups),
        samples=samples,
        mean=mean,
        sampling_error=_sampling_error(table[:, 0], samples),
        pass_at=dict(zip(ks, passes, strict=True)),
        majority=majority,
        lengths=_lengths([length for group in groups for length in group.lengths]),
        truncated=float(np.mean([cut for group in groups for cut in group.truncated])),
        unstated=float(np.mean([verdict.predicted is None for verdict in verdicts])),
        failures=sum(verdict.failure is not None for verdict in verdicts),
    )


def by_subset(groups: Sequence[Evaluated], subsets: Sequence[str]) -> dict[str, Summary]:
    """A summary for each value of `subsets`, which has the subset of each row of the set; by name, 2 before 10."""
    members: dict[str, list[Evaluated]] = {}
    for group in groups:
        members.setdefault(subsets[group.index], []).append(group)
    return {name: summarise(members[name]) for name in sorted(members, key=_numbers_as_such)}


def _numbers_as_such(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if index % 2 else (0, part) for index, part in enumerate(re.split(r"(\d+)", name))]


def _estimates(table: np.ndarray, seed: int) -> list[IntervalEstimate]:
    """Mean of each column with its interval; a row of `table` is a prompt, resampled as one."""
    prompts = len(table)
    values = table.mean(axis=0)
    if prompts < 2:
        return [IntervalEstimate(float(value)) for value in values]
    random, at_once = np.random.default_rng(seed), max(1, _CELLS_AT_ONCE // table.size)
    means = [
        table[random.integers(prompts, size=(min(at_once, RESAMPLES - done), prompts))].mean(axis=1)
        for done in range(0, RESAMPLES, at_once)
    ]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail], axis=0)
    return [IntervalEstimate(float(v), float(a), float(b)) for v, a, b in zip(values, low, high, strict=True)]


def _sampling_error(shares: np.ndarray, samples: int) -> float | None:
    """Standard error of the mean of `shares` when only the samples vary: binomial within each prompt, unbiased."""
    if samples < 2:
        return None
    return sqrt(float((shares * (1 - shares)).sum()) / (samples - 1)) / len(shares)


def _lengths(tokens: Sequence[int]) -> LengthSummary:
    median, p95 = np.quantile(tokens, [0.5, 0.95])
    return LengthSummary(float(np.mean(tokens)), float(median), float(p95), max(tokens))
