"""A logged response: the row that a trainer writes to Parquet in the object store, and that terminal and pages read."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class Sample:
    """One response, a column for each field.

    `reward` is after shaping, `accuracy` from 0 to 1, `length` in tokens; `truncated`: it reached the length limit;
    `details`: what a custom reward reported besides the score, as a JSON object, empty for nothing.
    """

    prompt: str
    response: str
    ground_truth: str
    reward: float
    accuracy: float
    length: int
    truncated: bool
    details: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the response counts as right."""
        return self.accuracy > 0.5

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The sample of a row; columns that only a newer trainer writes are ignored. Raises TypeError for a row without
        one of ours."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in row.items() if name in known})
