"""What came out of a run's validations: runs are compared by it, not by the accuracy of what they train on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dapo_core.run.metrics import Validation, validation_means


@dataclass(frozen=True)
class ValidationResult:
    """Mean accuracy (0 to 1) on one validation set: the last, and the highest with its step, the first of equals."""

    validation: Validation
    last: float
    last_step: int
    best: float
    best_step: int


def results_of(curves: Mapping[str, Iterable[tuple[int, float | None]]]) -> list[ValidationResult]:
    """The results of each validation set, ordered by its name. `curves` are (step, value) by metric, in the order of
    steps; values that are not finite are None, and do not count."""
    results = []
    for name, validation in validation_means(curves).items():
        finite = [(step, value) for step, value in curves[name] if value is not None]
        if finite:
            last_step, last = finite[-1]
            best_step, best = max(finite, key=lambda point: (point[1], -point[0]))
            results.append(ValidationResult(validation, last, last_step, best, best_step))
    return results
