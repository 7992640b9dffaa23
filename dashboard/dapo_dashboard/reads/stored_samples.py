"""Samples of a step: Parquet files in the object store, found by the rows that index them."""

import io
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import streamlit as st

from dapo_core.db import RunRow, SamplesRow
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.samples import Sample
from dapo_dashboard.server_settings import DashboardSettings

# In DAPO_STORE_URL: replaced by the namespace of the run, where each namespace has its own folder.
NAMESPACE: Final = "{namespace}"


def store_url(run: RunRow, settings: DashboardSettings) -> str | None:
    """The URL of the run's objects: `checkpoints.uri` of its job, else the dashboard's own store with the run's
    namespace in the place of `{namespace}`; None if neither is set.

    Raises StoreError if the job names another namespace's folder: whoever may see the run may not see that."""
    spec: Mapping[str, Any] = run.spec.get("spec") or {}
    named = str((spec.get("checkpoints") or {}).get("uri") or "")
    own = settings.store_url and settings.store_url.replace(NAMESPACE, run.namespace)
    if named and own and own != settings.store_url and _is_elsewhere(urlsplit(named), urlsplit(own)):
        raise StoreError(f"checkpoints.uri is {named}, which is outside the folder of namespace {run.namespace}.")
    return named or own


def _is_elsewhere(named: SplitResult, own: SplitResult) -> bool:
    """Whether the URL is in the shared bucket, but not in this namespace's folder."""
    folder = own.path.strip("/") + "/"
    return named.netloc == own.netloc and not (named.path.strip("/") + "/").startswith(folder)


def read_samples(url: str, row: SamplesRow) -> list[Sample]:
    """The samples that the row points to. Raises StoreError."""
    if not row.key.startswith(f"{row.run_id}/samples/") or ".." in row.key:
        raise StoreError(f"{row.key} is not a valid key of samples of run {row.run_id}.")
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
        raise StoreError(f"Cannot read the samples {key}: {error}.") from error
