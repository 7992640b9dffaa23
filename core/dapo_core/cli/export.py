"""`dapo export RUN FOLDER`: every point of a run, its checkpoints and samples as files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from dapo_core import read
from dapo_core.cli.common_options import HomeOption, MetadataOption, StoreOption
from dapo_core.cli.runs import find_run
from dapo_core.db import open_reader
from dapo_core.errors import NotInstalledError, Problem, SpecError
from dapo_core.run.formatting import cell
from dapo_core.run.home import Home

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["csv", "parquet", "json"]


def export(
    run: Annotated[str, typer.Argument(help="Run ID or job name (its latest run).", metavar="RUN")],
    folder: Annotated[Path, typer.Argument(help="Folder to create.", metavar="FOLDER")],
    metrics: Annotated[
        Format, typer.Option("--metrics", help="Format of metrics and checkpoints; samples are always Parquet.")
    ] = "parquet",
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Export a run's metrics, checkpoints and samples as files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError([Problem("FOLDER", f"{folder} already exists: name another folder.")])
    place = Home.find(home, metadata, store)
    url = place.recorded_url
    row = find_run(open_reader(url), run)
    try:
        points, checkpoints = read.metrics(url, row.run_id), read.checkpoints(url, row.run_id)
        samples = read.samples(url, row.run_id, place.store or row.objects_url or place.store_url)
    except ModuleNotFoundError as error:
        raise NotInstalledError(
            f"`dapo export` needs {error.name}, which is not installed: install dapo-platform with the extra read."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    written = [(points, f"metrics.{metrics}", metrics), (checkpoints, f"checkpoints.{metrics}", metrics)]
    for table, name, kind in [*written, (samples, "samples.parquet", "parquet")]:
        _WRITE[kind](table, folder / name)
        typer.echo(f"{folder / name}: {table.num_rows:,} rows.")


def _csv(table: "pa.Table", path: Path) -> None:
    """Nested columns as JSON: CSV has none. Texts are no formulas of a spreadsheet."""
    import pyarrow as pa
    from pyarrow import csv

    for index, column in enumerate(table.schema):
        values, texts = table.column(index), list[str | None]()
        if pa.types.is_map(column.type):
            texts = [json.dumps(dict(value or ())) for value in values.to_pylist()]
        elif pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            texts = [value if value is None else cell(value) for value in values.to_pylist()]
        else:
            continue
        table = table.set_column(index, column.name, pa.array(texts, pa.string()))
    csv.write_csv(table, path)


def _parquet(table: "pa.Table", path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(table, path, compression="zstd")


def _json(table: "pa.Table", path: Path) -> None:
    """One object for each row and line. NaN and infinities as Python's JSON and pandas write and read them."""
    import pyarrow as pa

    maps = [column.name for column in table.schema if pa.types.is_map(column.type)]
    with path.open("w") as file:
        for batch in table.to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                file.write(json.dumps(row | {name: dict(row[name] or ()) for name in maps}) + "\n")


_WRITE: Final[dict[str, Callable[["pa.Table", Path], None]]] = {"csv": _csv, "parquet": _parquet, "json": _json}
