"""What `dapo evaluate` found, one row a set. Rows are only ever added."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from dapo_core.db import dialects, schema


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


def record(url: str, rows: Sequence[EvaluationRow]) -> None:
    """Add the rows to the database at `url`. Raises StoreError."""
    engine = dialects.open_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(schema.evaluations.insert(), [asdict(row) for row in rows])
    except SQLAlchemyError as error:
        raise dialects.translate(error, "an evaluation") from error
    finally:
        engine.dispose()
