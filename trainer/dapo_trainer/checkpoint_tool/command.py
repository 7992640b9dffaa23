"""`dapo checkpoints`. Loading this module imports no engine, so that a mistake is answered at once."""

import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption, StoreOption
from dapo_core.errors import CheckpointError, Problem, SpecError
from dapo_core.run.home import Home
from dapo_core.run.reasons import ExitCode

checkpoints = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@STEP]", help="Run, or job for its newest run, and a step of it; or a checkpoint's URI."
    ),
]
RemoveOption = Annotated[bool, typer.Option("--remove", help="Do it. Left out, it is only told what would be done.")]
HOUR = 3600.0


@checkpoints.callback()
def main() -> None:
    """List, verify, prune, export and sweep checkpoints."""


@checkpoints.command("list")
def list_(
    run: CheckpointArgument,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the committed checkpoints of a run, newest first, and why each is kept."""
    from dapo_core.run.checkpoint import judge
    from dapo_trainer.checkpoint_tool.place import find
    from dapo_trainer.checkpoint_tool.tables import checkpoints_table

    found = find(run, Home.find(home, metadata, store))
    manifests = found.checkpoints.list()
    if as_json:
        rows = [asdict(each) | {"uri": found.checkpoints.uri(each.step)} for each in manifests]
        typer.echo(json.dumps(rows, indent=2))
        return
    verdicts = judge(found.retention, {each.step: each.metrics for each in manifests})
    # The rule as the job has it, which `prune` may be told otherwise.
    why = {verdict.step: verdict.why for verdict in verdicts}
    if manifests:
        Console().print(checkpoints_table(manifests, why, found.retention.best_metric, time.time()))
    else:
        typer.echo(f"The run {found.checkpoints.run_id} has no committed checkpoint in {found.checkpoints.store.url}.")


@checkpoints.command()
def verify(
    run: CheckpointArgument, home: HomeOption = None, metadata: MetadataOption = None, store: StoreOption = None
) -> None:
    """Read checkpoints to the last byte and tell which are whole; ends with 31 if one is not."""
    from dapo_trainer.checkpoint_tool.place import find

    found = find(run, Home.find(home, metadata, store))
    steps = [found.step] if found.step is not None else found.checkpoints.steps()
    if not steps:
        raise CheckpointError(f"The run {found.checkpoints.run_id} has no committed checkpoint.")
    damaged = 0
    for step in steps:
        try:
            manifest = found.checkpoints.manifest(step)
            found.checkpoints.verify(manifest)
            typer.echo(f"Step {step}: whole, {len(manifest.files)} files, {manifest.size_bytes} bytes.")
        except CheckpointError as error:
            damaged += 1
            typer.echo(f"Step {step}: {error}")
    if damaged:
        raise typer.Exit(ExitCode.STORES)


@checkpoints.command()
def prune(
    run: CheckpointArgument,
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="How many of the newest stay. Left out: as the job says.")
    ] = None,
    keep_best: Annotated[
        int | None, typer.Option(min=0, help="How many of the best stay besides. Left out: as the job says.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What is best, by its name. Left out: as the job says.")] = None,
    remove: RemoveOption = False,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Remove the checkpoints of a run that its rule, or another one, does not keep."""
    from dataclasses import replace

    from dapo_core.run.checkpoint import judge
    from dapo_trainer.checkpoint_tool.place import find
    from dapo_trainer.checkpoint_tool.tables import verdicts_table

    found = find(run, Home.find(home, metadata, store))
    given: dict[str, Any] = {"keep_last": keep_last, "keep_best": keep_best, "best_metric": metric}
    rule = replace(found.retention, **{name: value for name, value in given.items() if value is not None})
    if rule.keep_best and rule.best_metric is None:
        raise SpecError([Problem("--metric", "--keep-best needs a metric to compare by: name one with --metric.")])
    manifests = {manifest.step: manifest for manifest in found.checkpoints.list()}
    verdicts = judge(rule, {step: manifest.metrics for step, manifest in manifests.items()})
    Console().print(verdicts_table(verdicts, manifests))
    if remove:
        typer.echo(f"Removed: {len(found.checkpoints.retain(rule))}.")
    else:
        _told_only(sum(not verdict.keep for verdict in verdicts))


@checkpoints.command()
def export(
    run: CheckpointArgument,
    folder: Annotated[Path, typer.Argument(help="Folder to make: a model in Hugging Face's format.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the folder if it is there.")] = False,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Write the weights of a checkpoint as a folder that transformers and vLLM load."""
    from dapo_trainer.checkpoint_tool.place import find

    target = folder.expanduser().resolve()
    if target.exists() and not replace and not (target.is_dir() and not any(target.iterdir())):
        raise SpecError([Problem("FOLDER", f"{target} is there already: name another folder, or add --replace.")])
    found = find(run, Home.find(home, metadata, store))
    _prepare_engines()
    from dapo_trainer.checkpoint_tool.export import export as write

    target.parent.mkdir(parents=True, exist_ok=True)
    with redirect_stdout(sys.stderr):  # verl prints what it does
        manifest = write(found.checkpoints, found.step, target)
    typer.echo(f"The model of step {manifest.step} of {manifest.run_id} is in {target}.")


def _prepare_engines() -> None:
    """verl reads its environment when it is imported."""
    import os

    from dapo_trainer.verl_adapter import environment
    from dapo_trainer.verl_config.device import detect

    os.environ.update(environment(detect()))


@checkpoints.command()
def sweep(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="One run. Left out: every run in the store.")
    ] = None,
    older_than: Annotated[
        float, typer.Option("--older-than", min=0.0, help="Hours since the last change. An upload may take long.")
    ] = 24.0,
    unknown_runs: Annotated[
        bool, typer.Option("--unknown-runs", help="Also all of runs that the metadata store does not know.")
    ] = False,
    remove: RemoveOption = False,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Find what no checkpoint needs: torn uploads, shared files that are not named any more, runs nobody knows."""
    from dapo_trainer.checkpoint_tool.sweeping import found_in, sweep_all
    from dapo_trainer.checkpoint_tool.tables import leftovers_table

    found = found_in(run, Home.find(home, metadata, store), older_than * HOUR, unknown_runs)
    shown = [(checkpoints.run_id, leftover) for checkpoints, leftovers in found for leftover in leftovers]
    if not shown:
        typer.echo("Nothing to sweep.")
        return
    Console().print(leftovers_table(shown, time.time()))
    if remove:
        typer.echo(f"Removed: {sweep_all(found)} objects.")
    else:
        _told_only(len(shown))


def _told_only(count: int) -> None:
    if count:
        typer.echo("Nothing is removed yet: add --remove to do it.")
