"""`dapo run` and `dapo resume`. Loading this module imports no engine, so that mistakes are reported at once."""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from dapo_core.cli.common_options import HomeOption
from dapo_core.errors import Problem, SpecError
from dapo_core.run.home import Home

_TOP = ("apiVersion", "kind", "metadata", "spec")

PlainOption = Annotated[bool, typer.Option("--plain", help="Print one line for each step instead of the live view.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only how the run ended.")]


def run(
    job: Annotated[Path, typer.Argument(help="File with the DAPOJob, as YAML or JSON.")],
    home: HomeOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set a field, such as schedule.steps=50. Repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job. Default: the file's.")] = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train on this machine, supervised, until the job is done."""
    from dapo_core.jobspec import absolute_paths, parse_job, read_mapping
    from dapo_core.naming import new_run_id
    from dapo_trainer.local.run_session import Show, work_on
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
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="Run ID, or job name (its latest run).")],
    home: HomeOption = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
) -> None:
    """Resume a run from its newest checkpoint."""
    from dapo_trainer.local.run_session import Show, work_on
    from dapo_trainer.preflight import check
    from dapo_trainer.process.run_folder import find_run

    place = Home.find(home)
    folder = find_run(place, run_name)
    job = folder.read_job()
    check(job)
    raise typer.Exit(work_on(place, folder, job, Show(Console(), plain, quiet)))


def with_values(data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The job with each `path=value` of `--set`. Paths are dotted, `spec.` is optional, list entries are numbers. Pure.

    Values are YAML, so `1e-6` and `true` are what they look like. Raises SpecError with every invalid setting.
    """
    result = deepcopy(data)
    problems = []
    for setting in settings:
        try:
            path, value = _split(setting)
            _put(result, path, value)
        except ValueError as error:
            problems.append(Problem("--set", f"--set {setting}: {error}."))
    if problems:
        raise SpecError(problems)
    return result


def _split(setting: str) -> tuple[list[str], Any]:
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ValueError("write a dotted field, an equals sign and a value, such as schedule.steps=100")
    return (keys if keys[0] in _TOP else ["spec", *keys]), _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)  # knows 1e-6 for a number, which YAML 1.1 does not
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError("the value is not valid YAML; put text with special characters in quotes") from None


def _put(tree: Any, path: Sequence[str], value: Any) -> None:
    for depth, key in enumerate(path[:-1]):
        tree = _child(tree, key, ".".join(path[: depth + 1]))
    last = path[-1]
    if isinstance(tree, list):
        tree[_index(tree, last, ".".join(path))] = value
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise ValueError(f"{'.'.join(path[:-1])} is a single value and has no field {last}")


def _child(tree: Any, key: str, where: str) -> Any:
    if isinstance(tree, list):
        return tree[_index(tree, key, where)]
    if isinstance(tree, dict):
        if tree.get(key) is None:
            tree[key] = {}
        return tree[key]
    raise ValueError(f"{where} is inside a single value")


def _index(entries: list[Any], key: str, where: str) -> int:
    if not key.isdecimal() or int(key) >= len(entries):
        raise ValueError(f"{where} names no entry of a list of {len(entries)}; entries are counted from 0")
    return int(key)
