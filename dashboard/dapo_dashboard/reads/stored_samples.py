"""Samples of a step: Parquet files in the object store, found by the rows that index them."""

import os
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from dapo_core.db import RunRow, SamplesRow
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store, s3_address
from dapo_core.run.entries import Sample
from dapo_dashboard.reads.bounded_parquet import MAX_BYTES, Wanted
from dapo_dashboard.reads.cached_reader import NewestVersions
from dapo_dashboard.reads.parquet_rows import rows_of
from dapo_dashboard.server_settings import DashboardSettings

# In DAPO_STORE_URL: replaced by the namespace of the run, where each namespace has its own folder.
NAMESPACE: Final = "{namespace}"
# More than a step of any run has.
MAX_ROWS: Final = 50_000
# Shared by all viewers. The steps that were looked at last, as many as fit.
_READ: Final[NewestVersions[list[Sample]]] = NewestVersions(64, max_bytes=2 * MAX_BYTES)


def store_url(run: RunRow, settings: DashboardSettings) -> str | None:
    """The URL of the run's objects: `checkpoints.uri` of its job, else the dashboard's own store with the run's
    namespace in the place of `{namespace}`; None if neither is set.

    Where each namespace has its folder, only that folder on the dashboard's own server is ever opened: the dashboard's
    credentials read all folders, and a request to a server that a job names could be relayed. Raises StoreError for a
    job that names anything else."""
    named = run.objects_url
    own = settings.store_url and settings.store_url.replace(NAMESPACE, run.namespace)
    if named and own and own != settings.store_url:
        return _inside(named, own, run.namespace)
    return named or own


def _inside(named: str, own: str, namespace: str) -> str:
    """The folder that a job names, as a folder of the dashboard's own server. Raises StoreError."""
    try:
        ours = s3_address.parse(own, os.environ)
        # A job's pods have the server's address in their environment, and so most jobs do not name it.
        theirs = s3_address.parse(named, {s3_address.ENDPOINT: ours.endpoint})
        same = urlsplit(named).scheme == urlsplit(own).scheme == "s3"
        same = same and (theirs.bucket, theirs.endpoint) == (ours.bucket, ours.endpoint)
    except (ValueError, StoreError):
        same = False
    if not same or not f"{theirs.prefix}/".startswith(f"{ours.prefix}/") or ".." in theirs.prefix.split("/"):
        raise StoreError(f"checkpoints.uri is {named}, which is outside the folder of namespace {namespace}.")
    return replace(ours, prefix=theirs.prefix).url()


def read_samples(url: str, row: SamplesRow) -> list[Sample]:
    """The samples that the row points to. Raises StoreError."""
    if not row.is_of_run:
        raise StoreError(f"{row.key} is not a valid key of samples of run {row.run_id}.")
    return _READ.get((url, row.key), row.ts, lambda: _read(url, row.key))


def _read(url: str, key: str) -> list[Sample]:
    rows = rows_of(open_store(url).get_bytes(key), f"the samples {key}", Wanted(MAX_ROWS))
    try:
        return [Sample.of_row(row) for row in rows]
    except (ValueError, TypeError) as error:
        raise StoreError(f"Cannot read the samples {key}: {error}.") from error
