"""What `dapo evaluate` found, one row a set. Rows are only ever added."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation on one set.

    `subject` is what was named, `run_id` and `step` whose checkpoint it was (None for a plain model). `sampling` holds
    samples, temperature, topP, limits, seed, dtype and reward; `results` the figures of
    `dapo_trainer.evaluate.statistics.Summary`, with those of subsets under `subsets`.
    """

    evaluation_id: str
    set_name: str
    subject: str
    run_id: str | None
    step: int | None
    created_at: float
    source: str
    sampling: Mapping[str, Any]
    results: Mapping[str, Any]
