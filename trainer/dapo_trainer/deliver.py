"""`dapo db deliver`: brings metrics that trainers left in the object store into the metadata store."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dapo_core.cli.common_options import HomeOption, MetadataOption, StoreOption
from dapo_core.cli.runs import find_run
from dapo_core.cli.terminal import say
from dapo_core.db import MetadataWriter, RunRow, open_reader, open_writer
from dapo_core.errors import DapoError, StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.formatting import plural
from dapo_core.run.home import Home
from dapo_trainer.spool import StoredTail, drain

DELIVER_SECONDS = 60.0


def deliver(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run ID or job name. Default: every run.", show_default=False)
    ] = None,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Deliver metrics and events that trainers could not deliver, and left in the object store."""
    place = Home.find(home, metadata, store)
    reader, writer = open_reader(place.recorded_url), open_writer(place.metadata_url)
    left = 0
    for row in [find_run(reader, run)] if run is not None else reader.runs():
        try:
            found, undelivered = _deliver(row, place, writer)
        except DapoError as error:
            if run is not None:
                raise
            say(f"{row.run_id}: {error}", err=True)  # where its job's store is concerns no other run
            found, undelivered = 0, 1
        left += undelivered
        if found:
            typer.echo(f"{row.run_id}: {plural(found - undelivered, 'spool', 'spools')} delivered, {undelivered} left.")
    if left:
        raise StoreError(
            "Not everything was delivered: run `dapo db deliver` again when the metadata store accepts it."
        )
    typer.echo("Nothing is left to deliver.")


def _deliver(row: RunRow, place: Home, writer: MetadataWriter) -> tuple[int, int]:
    """How many spools of the run are in its object store, and how many could not be delivered."""
    url = place.store or row.objects_url or place.store_url
    tail = StoredTail(open_store(url), row.run_id)
    with tempfile.TemporaryDirectory(prefix="dapo-deliver-") as scratch:
        folders = tail.fetch(Path(scratch))
        for folder in folders:
            drain(folder, writer, row.run_id, DELIVER_SECONDS)
        return len(folders), tail.remove_delivered()
