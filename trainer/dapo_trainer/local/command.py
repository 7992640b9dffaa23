"""`dapo run` and `dapo resume`. Loading this module imports no engine, so that a mistake is answered at once."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapo_core.cli.common_options import HomeOption
from dapo_core.run.home import Home

PlainOption = Annotated[bool, typer.Option("--plain", help="One line a step instead of the live view.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show only how the run ended.")]


def run(
    job: Annotated[Path, typer.Argument(help="The DAPOJob, as YAML or JSON.")],
    home: HomeOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set a field, such as schedule.steps=50. Repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job instead of the file's.")] = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train on this machine, supervised, until the job is done."""
    from dapo_core.jobspec import absolute_paths, parse_job, read_mapping
    from dapo_core.naming import new_run_id
    from dapo_trainer.local.overrides import with_values
    from dapo_trainer.local.session import Show, work_on
    from dapo_trainer.preflight import check
    from dapo_trainer.process.run_folder import RunFolder

    named = [f"metadata.name={json.dumps(name)}"] if name is not None else []
    data = with_values(read_mapping(job), [*(settings or []), *named])
    parsed = parse_job(absolute_paths(data, job.resolve().parent))
    check(parsed)
    place = Home.find(home)
    folder = RunFolder(place.path / new_run_id(parsed.metadata.name))
    raise typer.Exit(work_on(place, folder, parsed, Show(Console(), plain, quiet)))


def resume(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or a job's name for its newest run.")],
    home: HomeOption = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on with a run from its newest checkpoint."""
    from dapo_trainer.local.session import Show, work_on
    from dapo_trainer.preflight import check
    from dapo_trainer.process.run_folder import find_run

    place = Home.find(home)
    folder = find_run(place, run_name)
    job = folder.read_job()
    check(job)
    raise typer.Exit(work_on(place, folder, job, Show(Console(), plain, quiet)))
