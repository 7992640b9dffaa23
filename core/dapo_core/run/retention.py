"""Which checkpoints are kept. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """The newest `keep_last` and, by `best_metric` (highest best), the best `keep_best` are kept."""

    keep_last: int = 2
    keep_best: int = 0
    best_metric: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What becomes of the checkpoint of one step, and a sentence that says why."""

    step: int
    keep: bool
    why: str


def judge(retention: Retention, checkpoints: Mapping[int, Mapping[str, float]]) -> list[Verdict]:
    """A verdict on each committed checkpoint, newest first. `checkpoints` are their metrics by step.

    One without a finite `best_metric` (no validation at its step) is never among the best. Of two as good, the later
    one is better: it has seen more.
    """
    newest = sorted(checkpoints, reverse=True)
    last = newest[: max(1, retention.keep_last)]
    values = {step: value for step in newest if (value := _value(retention, checkpoints[step])) is not None}
    best = sorted(values, key=lambda step: (values[step], step), reverse=True)[: retention.keep_best]
    return [_verdict(retention, step, last, best, values) for step in newest]


def _value(retention: Retention, metrics: Mapping[str, float]) -> float | None:
    value = metrics.get(retention.best_metric or "")
    return value if value is not None and math.isfinite(value) else None


def _verdict(retention: Retention, step: int, last: list[int], best: list[int], values: Mapping[int, float]) -> Verdict:
    reasons = []
    if step in last:
        reasons.append(f"number {last.index(step) + 1} of the newest {len(last)}")
    if step in best:
        place = best.index(step) + 1
        reasons.append(f"number {place} of the best {len(best)} by {retention.best_metric} ({values[step]:.4g})")
    if reasons:
        return Verdict(step, True, f"Kept as {' and '.join(reasons)}.")
    among = f"the newest {len(last)}"
    if retention.keep_best and retention.best_metric:
        value = f"{values[step]:.4g}" if step in values else "not measured"
        among += f" nor the best {retention.keep_best} by {retention.best_metric} ({value})"
    return Verdict(step, False, f"Removed: neither of {among}." if "nor" in among else f"Removed: not of {among}.")
