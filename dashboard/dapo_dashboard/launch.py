"""`dapo dashboard`: the pages over the runs of this machine, or over any metadata store."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from dapo_core.addresses import ALL_IPV4
from dapo_core.cli.common_options import HomeOption, MetadataOption
from dapo_core.cli.main import DISTRIBUTION
from dapo_core.db import upgrade
from dapo_core.errors import NotInstalledError
from dapo_core.run.home import Home
from dapo_dashboard import demo_runs, server_settings

LOOPBACK: Final = "127.0.0.1"
# Streamlit's variable: names, separated by spaces, by which browsers may reach it.
ALLOWED_HOSTS: Final = "STREAMLIT_SERVER_ALLOWED_HOSTS"
SERVER = Path(__file__).with_name("asgi.py")


def dashboard(
    home: HomeOption = None,
    metadata: MetadataOption = None,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = LOOPBACK,
    show_demo: Annotated[bool, typer.Option("--demo", help="Show the runs that come with the platform.")] = False,
) -> None:
    """Watch runs in the browser: curves, samples and alerts."""
    if find_spec("streamlit") is None:
        raise NotInstalledError(f"`dapo dashboard` needs streamlit: install {DISTRIBUTION} with the extra dashboard.")
    env = environment(home, metadata, show_demo)
    if env.get(server_settings.DEMO) == "1":
        typer.echo("Showing the demo runs that come with the platform; `dapo run job.yaml` starts your own.")
    typer.echo(f"The dashboard is at http://{'localhost' if address in (LOOPBACK, ALL_IPV4) else address}:{port}")
    arguments = ["--server.port", str(port)]
    if address != ALL_IPV4:  # left out, Streamlit listens on all addresses of IPv6, too
        arguments += ["--server.address", address]
    if address == LOOPBACK:
        # A web page whose name resolves to this machine must not read its runs.
        env.setdefault(ALLOWED_HOSTS, f"localhost {LOOPBACK}")
    # Replaces this process, so that signals and the exit code are the server's own.
    os.execve(sys.executable, [sys.executable, "-m", "streamlit", "run", str(SERVER), *arguments], env)


def environment(home: Path | None, metadata: str | None, show_demo: bool) -> dict[str, str]:
    """The server's environment, with the store of `metadata`, else of the home folder, else of the demo.

    Raises DapoError."""
    env, place = dict(os.environ), Home.find(home, metadata)
    if place.metadata and (metadata or not show_demo):
        return env | {server_settings.METADATA_URL: place.metadata}
    is_demo = show_demo or not place.database.is_file()
    if is_demo:
        folder = demo_runs.unpack()
        place = Home(folder, store=(folder / "store").as_uri())
    upgrade(place.metadata_url)
    # On one's own machine: whoever can start the dashboard may acknowledge alerts.
    return env | {
        server_settings.METADATA_URL: place.metadata_url,
        server_settings.ACKNOWLEDGE_URL: place.metadata_url,
        server_settings.STORE_URL: place.store_url,
        server_settings.DEMO: "1" if is_demo else "0",
    }
