"""Validation prompts that must not be trained on: a score on them would measure memory."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import duckdb

from dapo_core.errors import DataError
from dapo_trainer.data.prompts import fingerprint, prompt_key, text_of
from dapo_trainer.data.report import Overlap
from dapo_trainer.data.tables import USABLE, Columns, SourceFile, batches, load


@dataclass(frozen=True)
class HeldOut:
    """The prompts of a validation file, as fingerprints: of their text, and of what they ask."""

    source: str
    exact: frozenset[str]
    normalised: frozenset[str]

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, table: str, file: SourceFile, columns: Columns) -> "HeldOut":
        """Raises DataError when the file has neither these columns nor those of verl's chat schema."""
        try:
            load(connection, table, [file], columns)
        except DataError:
            if columns == Columns():
                raise
            connection.execute(f"DROP TABLE {table}")
            load(connection, table, [file], Columns())  # prepared before, with columns mapped then
        texts = [
            text_of(row["messages"])
            for batch in batches(connection, f"SELECT messages FROM {table} WHERE {USABLE}")
            for row in batch
        ]
        return cls(file.name, frozenset(map(fingerprint, texts)), frozenset(map(prompt_key, texts)))

    def overlap(self, seen: Mapping[str, Set[str]]) -> Overlap:
        exact, normalised = len(self.exact & seen["exact"]), len(self.normalised & seen["normalised"])
        return Overlap(self.source, len(self.normalised), exact, normalised)


def refuse_overlap(overlaps: Sequence[Overlap]) -> None:
    """Raises DataError naming the files whose prompts occur in the training data."""
    found = [
        f"{one.normalised} of the {one.prompts} prompts of {one.source} ({one.exact} to the letter)"
        for one in overlaps
        if one.normalised
    ]
    if found:
        raise DataError(
            f"The training data hold {' and '.join(found)}: leave them out with --overlap drop, "
            "or keep them with --overlap keep."
        )
