"""`dapo alerts`: tells people of alerts, by webhook and e-mail."""

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from dapo_core.cli.common_options import HomeOption, MetadataOption
from dapo_core.errors import DapoError
from dapo_core.run.home import Home
from dapo_core.run.store_rows import Notice

alerts = typer.Typer(
    help="Send alerts to Slack, webhooks and e-mail.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ReceiversOption = Annotated[
    Path, typer.Option("--receivers", help="File of the receivers, as in docs/alerts.md.", dir_okay=False, exists=True)
]


@alerts.command()
def send(receivers: ReceiversOption, metadata: MetadataOption = None, home: HomeOption = None) -> None:
    """Send alerts as they are raised and resolved, until stopped; each once, also over restarts."""
    from dapo_core.notify.alert_sender import send
    from dapo_core.notify.receivers import read_receivers

    url = Home.find(home, metadata).recorded_url
    found = read_receivers(receivers)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.getLogger(__name__).info("Sending alerts to %s", ", ".join(receiver.name for receiver in found) or "nobody")
    send(url, found, os.environ.get("DAPO_DASHBOARD_URL", "").rstrip("/"), stop)


@alerts.command()
def test(
    receivers: ReceiversOption,
    name: Annotated[str | None, typer.Argument(help="Only this receiver. Default: all.", show_default=False)] = None,
) -> None:
    """Send a test message to the receivers and report which of them accepted it."""
    from dapo_core.notify.delivery import DeliveryError, deliver
    from dapo_core.notify.messages import Bulletin
    from dapo_core.notify.receivers import read_receivers

    found = [receiver for receiver in read_receivers(receivers) if name in (None, receiver.name)]
    if not found:
        raise typer.BadParameter(f"The file {receivers} has no receiver {name}.")
    now = time.time()
    text = "This is a test of the alerts of DAPO. Nothing is wrong."
    notice = Notice("test", "test", "test", "Test", "raised", text, "Warn", now, None, None, now)
    failed = False
    for receiver in found:
        try:
            deliver(receiver, Bulletin([notice], os.environ.get("DAPO_DASHBOARD_URL", "").rstrip("/")))
            typer.echo(f"{receiver.name}: sent.")
        except (DeliveryError, DapoError) as error:
            failed = True
            typer.echo(f"{receiver.name}: {error}")
    if failed:
        raise typer.Exit(1)
