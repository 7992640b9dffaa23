"""`dapo runs` and `dapo show RUN`: runs of the metadata store, in the terminal."""

import difflib
import json
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption
from dapo_core.cli.terminal import print_all, text_console
from dapo_core.db import MetadataReader, RunRow, open_reader
from dapo_core.errors import DapoError
from dapo_core.run.home import Home


class UnknownRunError(DapoError):
    """There is no run with this name."""

    user_mistake = True


def runs(
    home: HomeOption = None,
    metadata: MetadataOption = None,
    namespace: Annotated[str | None, typer.Option(help="Only runs in this namespace.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of runs, newest first.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the runs on this machine."""
    from dapo_core.cli.run_page import runs_table
    from dapo_core.run.metrics import HEADLINES

    summaries = _reader(home, metadata).summaries(HEADLINES, namespace, limit)
    if as_json:
        _print_json(summaries)
    elif summaries:
        print_all(runs_table(summaries, time.time()))
    else:
        typer.echo("There are no runs yet. Start one with `dapo run job.yaml`.")


def show(
    run: Annotated[
        str, typer.Argument(help="Run ID, job name (its latest run), or an evaluated model.", metavar="RUN")
    ],
    home: HomeOption = None,
    metadata: MetadataOption = None,
    events: Annotated[int, typer.Option(help="Maximum number of events, newest last.", min=0)] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show one run: progress, attempts, checkpoints and events."""
    from dapo_core.cli.run_page import evaluations_list, load, page

    reader = _reader(home, metadata)
    if reader.run(run) is None and (evaluations := reader.evaluations(subject=_subject(run))):
        if as_json:
            _print_json(evaluations)
        else:
            print_all(evaluations_list(evaluations))
        return
    record = load(reader, find_run(reader, run), events)
    if as_json:
        _print_json(record)
    else:
        print_all(*page(record, time.time(), text_console().width))


def _subject(text: str) -> str:
    """A model as `dapo evaluate` records it: its URI, also for a folder."""
    return text if "://" in text else Path(text).expanduser().resolve().as_uri()


def find_run(reader: MetadataReader, name: str) -> RunRow:
    """The run of this ID, else the newest run of this job. Raises UnknownRunError with similar names."""
    row = reader.run(name)
    if row is not None:
        return row
    runs = reader.runs()
    names = list(dict.fromkeys([run.run_id for run in runs] + [run.name for run in runs]))
    if similar := difflib.get_close_matches(name, names, n=3, cutoff=0.5):
        hint = f"did you mean {' or '.join(similar)}?"
    else:
        hint = f"the newest are {', '.join(run.run_id for run in runs[:3])}." if runs else "there are no runs yet."
    raise UnknownRunError(f"There is no run {name!r}; {hint}")


def _reader(home: Path | None, metadata: str | None) -> MetadataReader:
    return open_reader(Home.find(home, metadata).recorded_url)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(_named(value), indent=2))


def _named(value: Any) -> Any:
    """Dataclasses and named tuples as mappings of their fields; JSON would write named tuples as lists."""
    if is_dataclass(value):
        return {field.name: _named(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _named(value._asdict())
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list | tuple) else value
