"""The subcommands of `dapo checkpoints`, and their tables. Loading this module imports no engine."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption, StoreOption
from dapo_core.cli.terminal import print_all, say
from dapo_core.errors import CheckpointError, Problem, SpecError
from dapo_core.run.checkpoint import Manifest, RetentionVerdict, judge
from dapo_core.run.formatting import ago, number, size
from dapo_core.run.home import Home
from dapo_core.run.reasons import ExitCode
from dapo_trainer.checkpoint_tool.lookup import find_checkpoints, find_leftovers
from dapo_trainer.checkpoints.stored_checkpoints import Leftover

checkpoints = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@STEP]", help="Run ID or job name (its latest run), with a step if needed; or a checkpoint's URI."
    ),
]
RemoveOption = Annotated[bool, typer.Option("--remove", help="Delete (default: dry run).")]
HOUR = 3600.0
DRY_RUN = "Dry run: nothing was removed. Add --remove to delete."


@checkpoints.callback()
def main() -> None:
    """List, verify, keep, prune, export and sweep checkpoints."""


@checkpoints.command("list")
def list_(
    run: CheckpointArgument,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the committed checkpoints of a run, newest first, and why each is kept."""
    selected = find_checkpoints(run, Home.find(home, metadata, store))
    checkpoints, manifests = selected.checkpoints, selected.checkpoints.manifests()
    if as_json:
        rows = [asdict(manifest) | {"uri": checkpoints.uri_of(manifest)} for manifest in manifests]
        typer.echo(json.dumps(rows, indent=2))
        return
    # By the job's own rule; `prune` may use another one.
    metrics = {manifest.step: manifest.metrics for manifest in manifests}
    verdicts = judge(selected.retention, metrics, checkpoints.pinned())
    why = {verdict.step: verdict.why for verdict in verdicts}
    if manifests:
        print_all(_checkpoints_table(manifests, why, selected.retention.best_metric, time.time()))
    else:
        say(f"The run {checkpoints.run_id} has no committed checkpoint in {checkpoints.store.url}.")


@checkpoints.command()
def verify(
    run: CheckpointArgument, home: HomeOption = None, metadata: MetadataOption = None, store: StoreOption = None
) -> None:
    """Read checkpoints to the last byte and print which are intact; the exit code is 31 if one is corrupt."""
    selected = find_checkpoints(run, Home.find(home, metadata, store))
    checkpoints = selected.checkpoints
    steps = [selected.step] if selected.step is not None else checkpoints.steps()
    if not steps:
        raise CheckpointError(f"The run {checkpoints.run_id} has no committed checkpoint.")
    corrupt = 0
    for step in steps:
        try:
            manifest = checkpoints.manifest(step, selected.attempt)
            checkpoints.verify(manifest)
            typer.echo(f"Step {step}: intact, {len(manifest.files)} files, {manifest.size_bytes} bytes.")
        except CheckpointError as error:
            corrupt += 1
            say(f"Step {step}: {error}")
    if corrupt:
        raise typer.Exit(ExitCode.STORES)


@checkpoints.command()
def prune(
    run: CheckpointArgument,
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="How many of the newest to keep. Default: the job's keepLast.")
    ] = None,
    keep_best: Annotated[
        int | None, typer.Option(min=0, help="How many of the best to keep as well. Default: the job's keepBest.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Metric for keep-best. Default: the job's bestMetric.")] = None,
    remove: RemoveOption = False,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Remove the checkpoints of a run that its job's rule, or the one given here, does not keep."""
    selected = find_checkpoints(run, Home.find(home, metadata, store))
    options: dict[str, Any] = {"keep_last": keep_last, "keep_best": keep_best, "best_metric": metric}
    rule = replace(selected.retention, **{name: value for name, value in options.items() if value is not None})
    if rule.keep_best and rule.best_metric is None:
        raise SpecError([Problem("--metric", "--keep-best needs a metric to compare by: set --metric.")])
    manifests = {manifest.step: manifest for manifest in selected.checkpoints.manifests()}
    metrics = {step: manifest.metrics for step, manifest in manifests.items()}
    verdicts = judge(rule, metrics, selected.checkpoints.pinned())
    print_all(_verdicts_table(verdicts, manifests))
    if remove:
        typer.echo(f"Removed: {len(selected.checkpoints.retain(rule))}.")
    elif any(not verdict.keep for verdict in verdicts):
        typer.echo(DRY_RUN)


@checkpoints.command()
def keep(
    run: CheckpointArgument,
    release: Annotated[bool, typer.Option("--release", help="Leave the checkpoint to retention again.")] = False,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Keep a checkpoint whatever the job's retention rule says, for `resumeFrom` or an evaluation."""
    selected = find_checkpoints(run, Home.find(home, metadata, store))
    if selected.step is None:
        raise SpecError(
            [Problem("RUN@STEP", f"{run} names no step: add one, such as {selected.checkpoints.run_id}@40.")]
        )
    name = f"{selected.checkpoints.run_id}@{selected.step}"
    if release:
        selected.checkpoints.unpin(selected.step)
        typer.echo(f"{name} is left to the retention rule.")
    else:
        selected.checkpoints.pin(selected.step)
        typer.echo(f"{name} is kept until `dapo checkpoints keep {name} --release`.")


@checkpoints.command()
def export(
    run: CheckpointArgument,
    folder: Annotated[Path, typer.Argument(help="Folder to create: a model in Hugging Face's format.")],
    overwrite: Annotated[bool, typer.Option("--replace", help="Replace the folder if it exists.")] = False,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Write the weights of a checkpoint as a folder that transformers and vLLM can load."""
    target = folder.expanduser().resolve()
    if target.exists() and not overwrite and not (target.is_dir() and not any(target.iterdir())):
        raise SpecError([Problem("FOLDER", f"{target} already exists: name another folder, or add --replace.")])
    selected = find_checkpoints(run, Home.find(home, metadata, store))
    _prepare_engines()
    from dapo_trainer.checkpoint_tool.model_export import export as write

    target.parent.mkdir(parents=True, exist_ok=True)
    with redirect_stdout(sys.stderr):  # verl prints its progress
        manifest = write(selected.checkpoints, selected.step, target, selected.attempt)
    say(f"The model at step {manifest.step} of {manifest.run_id} is in {target}.")


def _prepare_engines() -> None:
    """verl reads its environment when it is imported."""
    import os

    from dapo_trainer.verl_adapter import environment
    from dapo_trainer.verl_config.placement import detect_device

    os.environ.update(environment(detect_device()))


@checkpoints.command()
def sweep(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only this run. Default: every run in the store.")
    ] = None,
    older_than: Annotated[
        float, typer.Option("--older-than", min=0.0, help="Hours since the last change. An upload may take long.")
    ] = 24.0,
    unknown_runs: Annotated[
        bool,
        typer.Option(
            "--unknown-runs",
            help="Also checkpoints and samples of runs that are not in the metadata store; --remove needs RUN.",
        ),
    ] = False,
    samples_after: Annotated[
        float | None,
        typer.Option(
            "--samples-after",
            min=0.0,
            help="Also samples that were stored so many days ago, except those of a run's last step. Default: never.",
            show_default=False,
        ),
    ] = None,
    remove: RemoveOption = False,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Find what no checkpoint needs: incomplete uploads, shared files that are no longer used, old samples."""
    if unknown_runs and remove and run is None:
        raise SpecError(
            [
                Problem(
                    "--unknown-runs",
                    "Removing all unknown runs at once is not possible: name one, `dapo checkpoints sweep RUN "
                    "--unknown-runs --remove`.",
                )
            ]
        )
    keep_seconds = None if samples_after is None else samples_after * 24 * HOUR
    by_run = find_leftovers(run, Home.find(home, metadata, store), older_than * HOUR, unknown_runs, keep_seconds)
    found = [(checkpoints, leftover) for checkpoints, leftovers in by_run for leftover in leftovers]
    if not found:
        typer.echo("Nothing to sweep.")
        return
    print_all(_leftovers_table([(store.run_id, leftover) for store, leftover in found], time.time()))
    if not remove:
        typer.echo(DRY_RUN)
        return
    for checkpoints, leftover in found:
        checkpoints.remove_leftover(leftover)
    typer.echo(f"Removed: {sum(len(leftover.keys) for _, leftover in found)} objects.")


def _checkpoints_table(manifests: Sequence[Manifest], why: Mapping[int, str], metric: str | None, now: float) -> Table:
    """Committed checkpoints, newest first; `why` each is kept, by step."""
    table = _table("step", "attempt", "size", "files", "committed", *([metric] if metric else []), "Kept")
    for manifest in manifests:
        value = [number(manifest.metrics.get(metric))] if metric else []
        table.add_row(
            str(manifest.step),
            str(manifest.attempt),
            size(manifest.size_bytes),
            str(len(manifest.files)),
            ago(manifest.created_at, now),
            *value,
            why.get(manifest.step, ""),
        )
    return table


def _verdicts_table(verdicts: Sequence[RetentionVerdict], manifests: Mapping[int, Manifest]) -> Table:
    """Whether each checkpoint is kept or removed, and why."""
    table = _table("step", "size", "Decision")
    for verdict in verdicts:
        table.add_row(str(verdict.step), size(manifests[verdict.step].size_bytes), verdict.why)
    return table


def _leftovers_table(found: Sequence[tuple[str, Leftover]], now: float) -> Table:
    """What no checkpoint needs, by run."""
    table = _table("Run", "What", "objects", "size", "last change")
    for run_id, leftover in found:
        newest = max(info.modified for info in leftover.objects)
        what = {
            "TornUpload": f"incomplete upload of step {leftover.step}",
            "Unused": "shared files that no checkpoint uses",
            "OldSamples": "samples",
            "UnknownRun": "all checkpoints, samples and logs of a run that is not on record",
        }[leftover.kind]
        table.add_row(run_id, what, str(len(leftover.objects)), size(leftover.size_bytes), ago(newest, now))
    return table


def _table(*headings: str) -> Table:
    """Columns whose heading is in lower case hold numbers, aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading[:1].islower() else "left", overflow="fold")
    return table
