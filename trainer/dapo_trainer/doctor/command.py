"""`dapo doctor`: a table with a remedy per line, or JSON."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption, StoreOption
from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJobSpec, parse_job, read_mapping
from dapo_core.jobspec.parse import absolute_paths
from dapo_core.run.home import Home
from dapo_core.run.reasons import ExitCode
from dapo_trainer.doctor.bandwidth import Group
from dapo_trainer.doctor.check import Check, CheckVerdict, failures
from dapo_trainer.doctor.examination import Machine, examine, host
from dapo_trainer.verl_config.placement import Device, detect_device

_STYLES: Final = {
    CheckVerdict.OK: "green",
    CheckVerdict.WARNING: "yellow",
    CheckVerdict.FAILED: "bold red",
    CheckVerdict.SKIPPED: "dim",
}


@dataclass(frozen=True)
class Meeting:
    """Where the machines of an all-reduce meet: the first one listens at `host`:`port`."""

    host: str
    port: int
    nodes: int
    node: int

    @classmethod
    def of(cls, rendezvous: str | None, nodes: int, node: int) -> "Meeting | None":
        """Raises SpecError when the options do not go together."""
        if rendezvous is None and nodes == 1:
            return None
        name, _, port = (rendezvous or "").rpartition(":")
        if not name or not port.isdigit() or nodes < 2 or not 0 <= node < nodes:
            message = (
                f"--rendezvous is {rendezvous or 'missing'}, --nodes {nodes}, --node {node}: name the first machine as "
                "HOST:PORT, at least two machines, and this one's number from 0."
            )
            raise SpecError([Problem("--rendezvous", message)])
        return cls(name, int(port), nodes, node)


def doctor(
    job_file: Annotated[
        Path | None,
        typer.Argument(help="A DAPOJob as YAML. Default: check for any job.", metavar="JOB.YAML", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    rendezvous: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT at which the first of several machines listens, to measure between them.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="How many machines take part; run the command on each.")] = 1,
    node: Annotated[int, typer.Option(min=0, help="This machine's number among them, from 0.")] = 0,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Check whether this machine can train, with remedies.

    Driver, GPUs, NCCL, RDMA, kernels against float64, shared memory, limits, disk, clocks, DNS and stores. On a machine
    without a GPU it checks what applies there. The exit code is 15 when something would make a run fail.
    """
    meeting = Meeting.of(rendezvous, nodes, node)
    checks = list(examine(_machine(_spec(job_file), Home.find(home, metadata, store), meeting)))
    if as_json:
        typer.echo(json.dumps({"node": host(), "checks": [check.as_json() for check in checks]}, indent=1))
    else:
        Console().print(table(checks))
    if failures(checks):
        raise typer.Exit(ExitCode.NODE_UNFIT)


def _spec(job_file: Path | None) -> DAPOJobSpec | None:
    if job_file is None:
        return None
    return parse_job(absolute_paths(read_mapping(job_file), job_file.resolve().parent)).spec


def _machine(spec: DAPOJobSpec | None, home: Home, meeting: Meeting | None) -> Machine:
    device = _device(spec)
    gpus = spec.topology.trainer.gpus_per_pod if spec is not None else 1
    gpus = max(1, gpus)
    peers = None
    if meeting is not None:
        peers = Group(device, gpus, meeting.nodes, meeting.node, meeting.host, meeting.port)
    named = home.metadata or (home.metadata_url if home.database.is_file() else None)
    hosts = [] if meeting is None else [meeting.host]
    return Machine(device, gpus, home.path, hosts, named, _store(home), "doctor/", peers)


def _store(home: Home) -> str | None:
    """The store that is named, or the folder's own if there is one: a check creates none."""
    is_own = home.store is None and "DAPO_STORE_URL" not in os.environ
    return None if is_own and not (home.path / "store").is_dir() else home.store_url


def _device(spec: DAPOJobSpec | None) -> Device:
    """A job without GPUs trains on processors, whatever this machine has."""
    if spec is not None and not spec.topology.trainer.gpus_per_pod and "DAPO_DEVICE" not in os.environ:
        return "cpu"
    return detect_device()


def table(checks: Sequence[Check]) -> Table:
    """One line for each check."""
    made = Table(title=f"{host()}", title_justify="left")
    for column in ("check", "", "found", "remedy"):
        made.add_column(column, overflow="fold", no_wrap=column == "")
    for check in checks:
        made.add_row(check.name, Text(check.verdict, _STYLES[check.verdict]), check.found, check.remedy)
    return made
