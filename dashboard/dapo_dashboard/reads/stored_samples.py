"""Samples of a step: Parquet in the object store, found by the rows that index them."""

import io
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import streamlit as st

from dapo_core.db import RunRow, SamplesRow
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.samples import Sample
from dapo_dashboard.settings import Settings

# Stands in DAPO_STORE_URL for the namespace of a run, where each has a folder of its own.
NAMESPACE: Final = "{namespace}"


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


def read_samples(url: str, row: SamplesRow) -> list[Sample]:
    """The samples that the row points to. Raises StoreError."""
    if not row.key.startswith(f"{row.run_id}/samples/") or ".." in row.key:
        raise StoreError(f"{row.key} is not a valid key of samples of {row.run_id}.")
    samples: list[Sample] = _read(url, row.key, row.ts)
    return samples


@st.cache_data(max_entries=64, ttl=3600, show_spinner=False)
def _read(url: str, key: str, ts: float) -> list[Sample]:
    import pyarrow.parquet as parquet

    data = open_store(url).get_bytes(key)
    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
        return [Sample.of_row(row) for row in rows]
    except (ValueError, TypeError, OSError) as error:
        raise StoreError(f"The samples {key} cannot be read: {error}.") from error


def verdict(sample: Sample) -> str:
    """A word and a sign."""
    return ("✓ right" if sample.is_right else "✗ wrong") + (", truncated" if sample.truncated else "")
