"""Samples of a step: Parquet in the object store, found by the rows that index them."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import streamlit as st

from dapo_core.db import RunRow, SamplesRow
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_dashboard.settings import Settings


@dataclass(frozen=True)
class Answer:
    """One response. `length` is in tokens; `truncated`: it ran into the limit; `reward` is after shaping;
    `details`: what a custom reward said of it, as JSON, or nothing."""

    prompt: str
    response: str
    ground_truth: str
    reward: float
    accuracy: float
    length: int
    truncated: bool
    details: str = ""

    @property
    def verdict(self) -> str:
        """A word and a sign."""
        return ("✓ right" if self.accuracy > 0.5 else "✗ wrong") + (", cut off" if self.truncated else "")


_FIELDS: Final = frozenset(field.name for field in fields(Answer))


def store_url(run: RunRow, settings: Settings) -> str | None:
    """Where the run's objects lie: the place that its job names, else the dashboard's own."""
    spec: Mapping[str, Any] = run.spec.get("spec") or {}
    named = (spec.get("checkpoints") or {}).get("uri")
    return str(named) if named else settings.store_url


def read_answers(url: str, row: SamplesRow) -> list[Answer]:
    """The samples that the row points to. Raises StoreError."""
    answers: list[Answer] = _read(url, row.key, row.ts)
    return answers


@st.cache_data(max_entries=64, ttl=3600, show_spinner=False)
def _read(url: str, key: str, ts: float) -> list[Answer]:
    import pyarrow.parquet as parquet

    data = open_store(url).get_bytes(key)
    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
        # A trainer newer than this dashboard may have written more columns.
        return [Answer(**{name: row[name] for name in row if name in _FIELDS}) for row in rows]
    except (ValueError, TypeError, OSError) as error:
        raise StoreError(f"The samples {key} can not be read: {error}.") from error
