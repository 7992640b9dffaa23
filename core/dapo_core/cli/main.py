"""The `dapo` command: finds its subcommands by entry points, and imports one only when it is called."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, distribution
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from dapo_core.errors import DapoError, NotInstalledError
from dapo_core.run.reasons import ExitCode, end_of

DISTRIBUTION: Final = "dapo-platform"
ENTRY_POINTS: Final = "dapo.commands"
# One line for each command, so that `dapo --help` need not import what the command needs (a test compares them).
HELP: Final[dict[str, str]] = {
    "run": "Train on this machine, supervised, until the job is done.",
    "resume": "Resume a run from its newest checkpoint.",
    "evaluate": "Evaluate a checkpoint or model: mean@k, pass@k and maj@k.",
    "data": "Prepare datasets for training and validation.",
    "plan": "Show what a job would run, without starting anything.",
    "check": "Check jobs for GPUs against the installed packages.",
    "doctor": "Check whether this machine can train, with remedies.",
    "runs": "List the runs on this machine.",
    "show": "Show one run: progress, attempts, checkpoints and events.",
    "logs": "Print the log of a job's pod or of a local run, live or ended.",
    "chaos": "Hit a job with faults at a given rate, and report their cost.",
    "export": "Export a run's metrics, checkpoints and samples as files.",
    "dashboard": "Watch runs in the browser: curves, samples and alerts.",
    "alerts": "Send alerts to Slack, webhooks and e-mail.",
    "db": "Set up, check and prune the metadata store.",
    "checkpoints": "List, verify, keep, prune, export and sweep checkpoints.",
    "crd": "Print the CustomResourceDefinition of DAPOJob.",
    "version": "Print the versions of the platform and its engines.",
}


def command_of(name: str, entry_point: EntryPoint) -> Any:
    """The click command of an entry point, which is a typer app or a function."""
    loaded = _load(name, entry_point)
    if isinstance(loaded, typer.Typer):
        return typer.main.get_command(loaded)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(loaded)
    return typer.main.get_command(app)


def _load(name: str, entry_point: EntryPoint) -> Callable[..., Any] | typer.Typer:
    try:
        return entry_point.load()  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dapo_"):
            raise
        raise NotInstalledError(
            f"`dapo {name}` needs {error.name}, which is not installed: install {DISTRIBUTION} with the extra "
            "cpu or gpu."
        ) from error


class LazyGroup(TyperGroup):
    """A group whose commands are placeholders with a help line until one of them is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of HELP, then those that other packages add."""
        installed = entry_points()
        return [name for name in HELP if name in installed] + sorted(installed.keys() - HELP.keys())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The placeholder of a command: enough to list it, and to suggest it for a misspelled one."""
        if cmd_name not in entry_points():
            return None
        return typer.core.TyperCommand(cmd_name, help=HELP.get(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called, now loaded. A misspelled one gets suggestions, because all names are known."""
        self.commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or command.name is None:
            return name, command, rest
        return name, command_of(command.name, entry_points()[command.name]), rest


def entry_points(group: str = ENTRY_POINTS) -> dict[str, EntryPoint]:
    """Subcommands by name. Only of this distribution: scanning all of them takes longer than the help itself."""
    installed = distribution(DISTRIBUTION).entry_points.select(group=group)
    return {entry_point.name: entry_point for entry_point in installed}


app = typer.Typer(
    cls=LazyGroup, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


def _version(wanted: bool) -> None:
    """`--version` is `dapo version`."""
    if wanted:
        entry_points()["version"].load()()
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Same as `dapo version`.")
    ] = False,
) -> None:
    """Reinforcement learning of language models with DAPO, on one machine or on Kubernetes."""


def main() -> None:
    """Entry point of `dapo`. A DapoError is printed to stderr and ends with its exit code, a user's mistake with 2."""
    try:
        app()
    except DapoError as error:
        print_error(error)
        sys.exit(ExitCode.USAGE if error.user_mistake else end_of(error).code)


def print_error(error: DapoError) -> None:
    """Prints the sentences of an error to stderr, each on its own line. They may quote what a job or a pod says."""
    from dapo_core.run.formatting import printable

    for line in printable(str(error)).splitlines():
        typer.secho(f"error: {line}", fg=typer.colors.RED, err=True)
