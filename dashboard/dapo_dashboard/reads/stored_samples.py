"""Samples of a step: Parquet in the object store, found by the rows that index them."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

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


# Stands in DAPO_STORE_URL for the namespace of a run, where each has a folder of its own.
NAMESPACE: Final = "{namespace}"
_FIELDS: Final = frozenset(field.name for field in fields(Answer))


def store_url(run: RunRow, settings: Settings) -> str | None:
    """Where the run's objects lie: the place that its job names, else the dashboard's own, with the run's namespace
    where that says `{namespace}`.

    Raises StoreError for a job that names another namespace's folder: who may see the run may not see those."""
    spec: Mapping[str, Any] = run.spec.get("spec") or {}
    named = str((spec.get("checkpoints") or {}).get("uri") or "")
    own = settings.store_url and settings.store_url.replace(NAMESPACE, run.namespace)
    if named and own and own != settings.store_url and _is_elsewhere(urlsplit(named), urlsplit(own)):
        raise StoreError(f"The job keeps them in {named}, which is outside of the folder of namespace {run.namespace}.")
    return named or own


def _is_elsewhere(named: SplitResult, own: SplitResult) -> bool:
    """Whether the place is in the store of all namespaces, but not in this one's folder."""
    folder = own.path.strip("/") + "/"
    return named.netloc == own.netloc and not (named.path.strip("/") + "/").startswith(folder)


def read_answers(url: str, row: SamplesRow) -> list[Answer]:
    """The samples that the row points to. Raises StoreError."""
    if not row.key.startswith(f"{row.run_id}/samples/") or ".." in row.key:
        raise StoreError(f"{row.key} is no place of samples of {row.run_id}.")
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
