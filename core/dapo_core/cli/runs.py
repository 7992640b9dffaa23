"""`dapo runs` and `dapo show RUN`: what the metadata store knows, in the terminal."""

import difflib
import json
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption
from dapo_core.db import MetadataReader, RunRow, open_reader
from dapo_core.errors import DapoError
from dapo_core.run.home import Home


class UnknownRunError(DapoError):
    """There is no run of this name."""

    user_mistake = True


def runs(
    home: HomeOption = None,
    metadata: MetadataOption = None,
    namespace: Annotated[str | None, typer.Option(help="Only the runs of this namespace.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the runs on this machine."""
    from dapo_core.cli.run_tables import runs_table
    from dapo_core.run.metrics import HEADLINES

    summaries = _reader(home, metadata).summaries(HEADLINES, namespace, limit)
    if as_json:
        _print_json(summaries)
    elif summaries:
        Console().print(runs_table(summaries, time.time()))
    else:
        typer.echo("There are no runs yet. Start one with `dapo run job.yaml`.")


def show(
    run: Annotated[
        str, typer.Argument(help="Run, or job: then its newest run; or a model that was evaluated.", metavar="RUN")
    ],
    home: HomeOption = None,
    metadata: MetadataOption = None,
    events: Annotated[int, typer.Option(help="How many events, newest last.", min=0)] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show one run: progress, attempts, checkpoints and events."""
    from dapo_core.cli.evaluations import evaluations_list
    from dapo_core.cli.run_page import load, page

    reader, console = _reader(home, metadata), Console()
    if reader.run(run) is None and (found := reader.evaluations(subject=_subject(run))):
        # No run, but a model that was evaluated.
        if as_json:
            _print_json(found)
        else:
            console.print(evaluations_list(found))
        return
    record = load(reader, find_run(reader, run), events)
    if as_json:
        _print_json(record)
    else:
        console.print(*page(record, time.time(), console.width), sep="\n")


def _subject(text: str) -> str:
    """A model as `dapo evaluate` has recorded it: a URI, also of a folder."""
    return text if "://" in text else Path(text).expanduser().resolve().as_uri()


def find_run(reader: MetadataReader, name: str) -> RunRow:
    """The run of this id, else the job's newest. Raises UnknownRunError with the nearest names."""
    found = reader.run(name)
    if found is not None:
        return found
    rows = reader.runs()
    known = list(dict.fromkeys([row.run_id for row in rows] + [row.name for row in rows]))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [row.run_id for row in rows[:3]]
    hint = f"the nearest are {', '.join(near)}." if near else "there are no runs yet."
    raise UnknownRunError(f"There is no run {name!r}; {hint}")


def _reader(home: Path | None, metadata: str | None) -> MetadataReader:
    return open_reader(Home.find(home, metadata).recorded_url)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(_named(value), indent=2))


def _named(value: Any) -> Any:
    """Rows with the names of their fields, be they dataclasses or named tuples, which JSON takes for lists."""
    if is_dataclass(value):
        return {field.name: _named(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _named(value._asdict())
    if isinstance(value, dict):
        return {key: _named(each) for key, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list | tuple) else value
