"""The picture of benchmarks/ablation.py: each run as a thin line, the mean of a row's seeds as a thick one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from ablation_results import Result
from pictures import save

COLORS = ("#999999", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00")  # distinguishable with color blindness
TENTHS = 10
Points = Sequence[tuple[float, float]]


def draw(found: Sequence[Result], names: Sequence[str], picture: Path) -> None:
    """`names`: of the rows, from the first; the two lower panels show rows 5 and 6: the cost of dynamic sampling."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), constrained_layout=True)
    (accuracy, entropy), (tokens, seconds) = axes
    found = [result for result in found if result.replicate == 0]
    generated = all(result.nll for result in found)  # older results have the entropy of what was trained on alone
    _lines(accuracy, found, lambda r: [(t, v) for _, t, v in r.accuracy])
    _lines(entropy, found, lambda r: list(zip(_spent(r), r.nll if generated else r.entropy, strict=True)))
    priced = [result for result in found if result.row in (5, 6)]
    _lines(tokens, priced, _ratio)
    _lines(seconds, priced, lambda r: _by_tenths(r, r.seconds, median))
    for axis, title in (
        (accuracy, "Validation mean@8"),
        (entropy, "Mean -log p of all generated tokens, nats" if generated else "Entropy of what is trained on, nats"),
        (tokens, "Tokens generated per token trained on, by tenths of the budget"),
        (seconds, "Seconds per step (median), by tenths of the budget"),
    ):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("thousand tokens generated", fontsize=9)
        axis.grid(alpha=0.3)
    entropy.set_yscale("log")
    tokens.set_ylim(bottom=0)
    seconds.set_ylim(bottom=0)
    shown = sorted({result.row for result in found})
    handles = [plt.Line2D([], [], color=COLORS[n - 1], linewidth=2, label=f"{n} {names[n - 1]}") for n in shown]
    accuracy.legend(handles=handles, fontsize=8, loc="lower right")
    save(figure, picture)


def _lines(axis: Any, found: Sequence[Result], points: Callable[[Result], Points]) -> None:
    """`points`: tokens generated until then, and a value."""
    for row in sorted({result.row for result in found}):
        curves = [points(result) for result in found if result.row == row]
        grid = np.linspace(max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves), 60)
        for curve in curves:
            axis.plot([t / 1000 for t, _ in curve], [v for _, v in curve], color=COLORS[row - 1], lw=0.7, alpha=0.35)
        together = np.mean([np.interp(grid, [t for t, _ in curve], [v for _, v in curve]) for curve in curves], axis=0)
        axis.plot(grid / 1000, together, color=COLORS[row - 1], lw=2)


def _spent(result: Result) -> list[int]:
    return [int(total) for total in np.cumsum(result.generated)]


def _ratio(result: Result) -> Points:
    generated = _by_tenths(result, result.generated, sum)
    trained = _by_tenths(result, result.trained, sum)
    return [(at, made / max(1, used)) for (at, made), (_, used) in zip(generated, trained, strict=True)]


def _by_tenths(result: Result, values: Sequence[float], together: Callable[[Sequence[float]], float]) -> Points:
    """A value for the steps of each tenth of the budget; none for a tenth that is shorter than a step."""
    tenth = result.token_budget / TENTHS
    made: dict[int, list[tuple[int, float]]] = {}
    for spent, value in zip(_spent(result), values, strict=True):
        made.setdefault(int((spent - 1) // tenth), []).append((spent, value))
    return [
        (mean(spent for spent, _ in steps), together([value for _, value in steps]))
        for _, steps in sorted(made.items())
    ]
