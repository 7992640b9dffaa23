"""A run's data for notebooks, as Arrow tables: every point of its curves, its checkpoints and its samples.

    from dapo_core import read
    table = read.metrics("postgresql://reader:...@host/dapo", "arith-20261121-0412-x7k2", ["val-core/math/acc/mean@8"])
    table.to_pandas()

The database's login decides what is seen, as on the dashboard's pages. Needs the extra `read`.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from dapo_core.db import MetadataReader, RunRow, SamplesRow, open_reader
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.store_rows import CheckpointRow

if TYPE_CHECKING:
    import pyarrow as pa

# Columns that are added to those of a file.
_OURS = ("attempt", "step")
# Curves that are read together: one query for each metric of a long run would wait for the server a hundred times.
_TOGETHER = 10


def metrics(url: str, run: str, names: Sequence[str] | None = None) -> "pa.Table":
    """Every point of the run's metrics (`names`; default: all): metric, step, attempt, time (Unix seconds) and value.

    Of a step that several attempts did it is the highest one's. Sorted by metric and step; NaN and infinities are
    values. `run` is a run's ID or a job's name. Raises StoreError, also when there is no such run.
    """
    import pyarrow as pa

    schema = pa.schema(
        [
            ("metric", pa.dictionary(pa.int32(), pa.string())),
            ("step", pa.int64()),
            ("attempt", pa.int32()),
            ("time", pa.float64()),
            ("value", pa.float64()),
        ]
    )
    with _opened(url, run) as (reader, row):
        wanted = sorted(set(names)) if names is not None else reader.metrics(row.run_id)
        tables = [_curves(reader, row.run_id, wanted[at : at + _TOGETHER]) for at in range(0, len(wanted), _TOGETHER)]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)]).unify_dictionaries()


def checkpoints(url: str, run: str) -> "pa.Table":
    """The run's checkpoints in every state, highest step first, with the columns of `CheckpointRow`. Metrics are a list
    of names and values. Raises StoreError."""
    import pyarrow as pa

    with _opened(url, run) as (reader, row):
        rows = [asdict(found) | {"metrics": sorted(found.metrics.items())} for found in reader.checkpoints(row.run_id)]
    columns = {field.name: [found[field.name] for found in rows] for field in fields(CheckpointRow)}
    return pa.table(columns | {"metrics": pa.array(columns["metrics"], pa.map_(pa.string(), pa.float64()))})


def samples(url: str, run: str, store: str | None = None, steps: Sequence[int] | None = None) -> "pa.Table":
    """The run's logged samples (of `steps`; default: all), with their step and attempt.

    `store` is the URL of the object store; default: the one that the run's job names. Raises StoreError.
    """
    import pyarrow as pa

    with _opened(url, run) as (reader, row):
        found = [of for of in reader.samples(row.run_id) if steps is None or of.step in steps]
    place = store or row.objects_url
    if not found:
        return pa.table({})
    if place is None:
        raise StoreError(f"The job of {row.run_id} names no object store: give its URL as `store`.")
    try:
        return pa.concat_tables([_samples(place, of) for of in found])
    except pa.ArrowException as error:
        raise StoreError(f"The samples of {row.run_id} have different columns: {error}. Name some `steps`.") from error


def _curves(reader: MetadataReader, run_id: str, names: Sequence[str]) -> "pa.Table":
    import pyarrow as pa

    curves = reader.since(run_id, names, -1)
    points = [(name, point) for name in names for point in curves[name]]
    return pa.table(
        {
            "metric": pa.array([name for name, _ in points], pa.string()).dictionary_encode(),
            "step": pa.array([point.step for _, point in points], pa.int64()),
            "attempt": pa.array([point.attempt for _, point in points], pa.int32()),
            "time": pa.array([point.ts for _, point in points], pa.float64()),
            "value": pa.array([point.number for _, point in points], pa.float64()),
        }
    )


def _samples(url: str, row: SamplesRow) -> "pa.Table":
    import pyarrow as pa
    from pyarrow import parquet

    if not row.is_of_run:
        raise StoreError(f"{row.key} is not a key of samples of the run {row.run_id}.")
    try:
        table = parquet.read_table(io.BytesIO(open_store(url).get_bytes(row.key)))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise StoreError(f"The samples {row.key} cannot be read: {error}.") from error
    # What pandas would make of the table is not for its writer to say.
    table = table.replace_schema_metadata(None).drop_columns([name for name in _OURS if name in table.column_names])
    for name, value in zip(_OURS, (row.attempt, row.step), strict=True):
        table = table.add_column(0, name, pa.array([value] * table.num_rows, pa.int64()))
    return table


@contextmanager
def _opened(url: str, run: str) -> Iterator[tuple[MetadataReader, RunRow]]:
    """A reader and the run's row. Raises StoreError when there is no such run."""
    reader = open_reader(url)
    try:
        row = reader.run(run)
        if row is None:
            raise StoreError(f"There is no run {run!r} in this metadata store.")
        yield reader, row
    finally:
        reader.close()
