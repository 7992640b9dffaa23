"""`dapo db`: the metadata store's tables, logins and retention."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from dapo_core.cli.common_options import MetadataOption
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
    str | None, typer.Option(help="Only this namespace. Left out: all of them.", show_default=False)
]
DaysOption = Annotated[float | None, typer.Option(min=0, help="Days after a run's end.", show_default=False)]


@db.command()
def upgrade(
    metadata: MetadataOption = None,
    roles: Annotated[bool, typer.Option("--roles", help="Also set up the roles of a Postgres store.")] = False,
) -> None:
    """Bring the store to this program's tables, making it if it is not there."""
    from dapo_core.db import check, upgrade

    url = _url(metadata)
    upgrade(url, with_roles=roles)
    typer.echo(f"{check(url).url} is at revision {check(url).revision}.")


@db.command()
def check(metadata: MetadataOption = None) -> None:
    """Tell where the store is, its revision and its size; ends with 31 unless the revision is this program's."""
    from dapo_core.db import check

    found = check(_url(metadata))
    typer.echo(f"{found.url}: {found.server}, revision {found.revision}, {size(found.size_bytes)}.")
    if not found.is_current:
        raise StoreError(f"This program needs revision {found.program}: run `dapo db upgrade`.")


@db.command()
def prune(
    metadata: MetadataOption = None,
    thin_after: DaysOption = None,
    remove_after: DaysOption = None,
    max_points: Annotated[
        int | None, typer.Option(min=0, help="Points of the whole store; past it the oldest go.", show_default=False)
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.", show_default=False)] = None,
    namespace: NamespaceOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only told.")] = False,
) -> None:
    """Thin runs that ended long ago to one point in 16, and remove the oldest."""
    from dapo_core.db.prune import Keep, apply, plan

    url = _url(metadata)
    chosen = plan(url, Keep(thin_after, remove_after, max_points, run, namespace), time.time())
    for verb, listed in (("remove", chosen.remove), ("thin", chosen.thin)):
        for each in listed:
            typer.echo(f"{verb:<8}{each.run_id:<40}{each.namespace:<20}{each.points:>14,} points")
    typer.echo(
        f"{len(chosen.remove)} runs to remove and {len(chosen.thin)} to thin: {chosen.points_gone:,} of "
        f"{chosen.points:,} points, about {size(round(chosen.bytes_gone))}."
    )
    if yes:
        apply(url, chosen)
        typer.echo("Done. The database uses the space again for what comes next.")
    elif chosen.remove or chosen.thin:
        typer.echo("Nothing was changed: add --yes.")


@db.command()
def grant(
    login: LoginArgument,
    role: Annotated[Literal["writer", "reader", "acknowledger"], typer.Option(help="What it may do.")],
    metadata: MetadataOption = None,
    namespace: NamespaceOption = None,
    password_file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Its password. Left out: one is made.", show_default=False),
    ] = None,
) -> None:
    """Make a login of a Postgres store, or bind one to another role or namespace; prints its URL when it is new."""
    from dapo_core.db import roles

    password = password_file.read_text().strip() if password_file else None
    url = roles.grant(_url(metadata), login, role, namespace, password)
    where = f"namespace {namespace}" if namespace else "all namespaces"
    typer.echo(f"{login}: {role} of {where}.", err=True)
    if url is not None:
        typer.echo(url.render_as_string(hide_password=False))


@db.command()
def revoke(login: LoginArgument, metadata: MetadataOption = None) -> None:
    """Take all rights of a login away and end its connections."""
    from dapo_core.db import roles

    roles.revoke(_url(metadata), login)
    typer.echo(f"{login} has no rights in this store any more.")


@db.command()
def logins(metadata: MetadataOption = None) -> None:
    """List the logins of a Postgres store with their role and namespace."""
    from dapo_core.db import roles

    for login, group, namespace in roles.logins(_url(metadata)):
        typer.echo(f"{login:<40}{group.removeprefix('dapo_'):<16}{namespace or '(all)'}")


def _url(metadata: str | None) -> str:
    return Home.find(metadata=metadata).metadata_url
