"""`dapo db`: the metadata store's tables, logins and retention."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from dapo_core.cli.common_options import HomeOption, MetadataOption
from dapo_core.cli.main import ENTRY_POINTS, entry_points
from dapo_core.errors import StoreError
from dapo_core.run.formatting import size
from dapo_core.run.home import Home

db = typer.Typer(
    help="Set up, check and prune the metadata store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LoginArgument = Annotated[str, typer.Argument(help="Name of the login.", metavar="LOGIN")]
NamespaceOption = Annotated[
    str | None, typer.Option(help="Only this namespace. Default: all namespaces.", show_default=False)
]
DaysOption = Annotated[
    float | None, typer.Option(min=0, help="Days after the end of a run. Default: never.", show_default=False)
]


@db.command()
def upgrade(
    metadata: MetadataOption = None,
    home: HomeOption = None,
    roles: Annotated[
        bool, typer.Option("--roles", help="Also create or update the roles of a PostgreSQL store.")
    ] = False,
) -> None:
    """Create the store, or migrate it to the revision of this version."""
    from dapo_core.db import check, upgrade

    url = _url(metadata, home)
    upgrade(url, with_roles=roles)
    typer.echo(f"{check(url).url} is at revision {check(url).revision}.")


@db.command()
def check(metadata: MetadataOption = None, home: HomeOption = None) -> None:
    """Show the store's URL, revision and size; exit with 31 if the store needs an upgrade."""
    from dapo_core.db import check
    from dapo_core.db.convert import waiting

    url = _url(metadata, home)
    status = check(url)
    typer.echo(f"{status.url}: {status.server}, revision {status.revision}, {size(status.size_bytes)}.")
    if not status.is_current:
        raise StoreError(f"This version of dapo needs revision {status.program}: run `dapo db upgrade`.")
    ended, going_on = waiting(url)
    if ended or going_on:
        typer.echo(
            f"{ended} runs have points of an earlier version, which take twice the space: `dapo db convert` moves them "
            f"while the store is in use. {going_on} more runs have not ended."
        )


@db.command()
def convert(
    metadata: MetadataOption = None,
    home: HomeOption = None,
    batch: Annotated[int, typer.Option(min=1, help="Points that one transaction moves.")] = 20_000,
) -> None:
    """Move the points of ended runs that earlier versions wrote to a table where they take half the space."""
    from dapo_core.db.convert import convert

    moved = runs = 0
    for run_id, points in convert(_url(metadata, home), batch):
        typer.echo(f"{run_id:<40}{points:>14,} points")
        moved, runs = moved + points, runs + 1
    typer.echo(f"Moved {moved:,} points of {runs} runs. Runs that have not ended were skipped.")


@db.command()
def prune(
    metadata: MetadataOption = None,
    home: HomeOption = None,
    thin_after: DaysOption = None,
    remove_after: DaysOption = None,
    max_points: Annotated[
        int | None,
        typer.Option(min=0, help="Maximum points in the store; the oldest runs are removed first.", show_default=False),
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.", show_default=False)] = None,
    namespace: NamespaceOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the changes (default: dry run).")] = False,
) -> None:
    """Thin out runs that ended long ago to one point in 16 steps, and remove the oldest runs."""
    from dapo_core.db.prune import Keep, apply, plan

    url = _url(metadata, home)
    chosen = plan(url, Keep(thin_after, remove_after, max_points, run, namespace), time.time())
    for verb, ended_runs in (("remove", chosen.remove), ("thin", chosen.thin)):
        for ended in ended_runs:
            typer.echo(f"{verb:<8}{ended.run_id:<40}{ended.namespace:<20}{ended.points:>14,} points")
    typer.echo(
        f"{len(chosen.remove)} runs to remove and {len(chosen.thin)} to thin: {chosen.points_gone:,} of "
        f"{chosen.points:,} points, about {size(round(chosen.bytes_gone))}."
    )
    if yes:
        apply(url, chosen)
        typer.echo("Done. The database will reuse the freed space.")
    elif chosen.remove or chosen.thin:
        typer.echo("Dry run: nothing was changed. Apply the changes with --yes.")


@db.command()
def grant(
    login: LoginArgument,
    role: Annotated[
        Literal["writer", "reader", "acknowledger", "operator", "notifier"],
        typer.Option(help="Permissions of the login."),
    ],
    metadata: MetadataOption = None,
    namespace: NamespaceOption = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="File with the password. Default: a generated one.", show_default=False
        ),
    ] = None,
) -> None:
    """Create a login of a PostgreSQL store and print its URL, or give a login another role or namespace."""
    from dapo_core.db import roles

    password = password_file.read_text().strip() if password_file else None
    url = roles.grant(_url(metadata), login, role, namespace, password)
    where = f"namespace {namespace}" if namespace else "all namespaces"
    typer.echo(f"{login}: {role} in {where}.", err=True)
    if url is not None:
        typer.echo(url.render_as_string(hide_password=False))


@db.command()
def revoke(login: LoginArgument, metadata: MetadataOption = None) -> None:
    """Revoke all rights of a login and end its connections."""
    from dapo_core.db import roles

    connections_left = roles.revoke(_url(metadata), login)
    typer.echo(f"{login} no longer has any rights in this store.")
    if connections_left:
        typer.echo(
            f"The server did not permit ending its {connections_left} connections, which have no rights left: end them "
            "as a superuser or a member of pg_signal_backend.",
            err=True,
        )


@db.command()
def logins(metadata: MetadataOption = None) -> None:
    """List the logins of a PostgreSQL store with their roles and namespaces."""
    from dapo_core.db import roles

    for login, group, namespace in roles.logins(_url(metadata)):
        typer.echo(f"{login:<40}{group.removeprefix('dapo_'):<16}{namespace or '(all)'}")


def _url(metadata: str | None, home: Path | None = None) -> str:
    return Home.find(home, metadata).metadata_url


# Of parts above this package: `deliver` reads what trainers have left.
for _name, _entry_point in entry_points(f"{ENTRY_POINTS}.db").items():
    db.command(_name)(_entry_point.load())
