"""The wiring: Kopf watches DAPOJobs, and hands them to the fleet."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import kopf

from dapo_core.naming import GROUP, PLURAL, VERSION
from dapo_operator.fleet import Fleet
from dapo_operator.kube.client import Connection, Kube
from dapo_operator.kube.leadership import Leadership, LeadershipLostError
from dapo_operator.kube.lease import Fence, KubeLease
from dapo_operator.kube.rate_limit import RateLimit
from dapo_operator.settings import Settings
from dapo_operator.telemetry.logs import set_up
from dapo_operator.telemetry.recorder import Telemetry
from dapo_operator.telemetry.server import TelemetryServer

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 1.0
_TOKEN_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def connection() -> Connection:
    """Where the API server is: the pod's service account, else the kubeconfig. Raises kopf.LoginError."""
    settings = kopf.OperatorSettings()
    info = kopf.login_with_service_account(settings=settings, logger=logger)
    file = _TOKEN_FILE if info is not None else None
    if info is None:
        info = kopf.login_with_kubeconfig(settings=settings, logger=logger)
    if info is None:
        raise kopf.LoginError("There is neither a service account nor a kubeconfig: set KUBECONFIG.")
    return Connection(info.server, info.as_ssl_context(), info.as_http_headers(), info.default_namespace, file)


def registry(fleet: Fleet, kube: Kube) -> kopf.OperatorRegistry:
    """Kopf's handlers, decorators only."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(
            server=kube.connection.server,
            default_namespace=kube.connection.namespace,
            aiohttp_session=kube.open_session(),
        )

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        fleet.seen(event["type"], event["object"])

    return handlers


async def operate(settings: Settings) -> None:
    """Work until a signal asks to stop. Raises LeadershipLostError when another replica may have begun."""
    leadership: Leadership | None = None
    telemetry = Telemetry()
    fence = Fence(lambda: leadership is None or leadership.holds())
    limit = RateLimit(settings.requests_per_second, settings.requests_burst)
    kube = Kube(connection(), (fence, limit, telemetry.middleware))
    if settings.lease:
        namespace = settings.lease_namespace or kube.connection.namespace or "default"
        leadership = Leadership(KubeLease(kube, namespace, settings.lease), settings.identity)
    fleet = Fleet(kube, settings, telemetry)
    telemetry.jobs = fleet.conditions
    telemetry.metrics.leader.set_function(lambda: leadership is None or leadership.holds())
    server = TelemetryServer("0.0.0.0", settings.telemetry_port, telemetry.metrics.registry, telemetry.pulse.ailments)
    server.start()
    try:
        await _lead(fleet, kube, settings, leadership, telemetry)
    finally:
        await fleet.stop()
        if leadership is not None:
            await leadership.release()
        await kube.close()
        server.stop()


async def _lead(
    fleet: Fleet, kube: Kube, settings: Settings, leadership: Leadership | None, telemetry: Telemetry
) -> None:
    """Wait for the lease, then work for as long as it is held, nothing that all depend on breaks, and nobody asks to
    stop."""
    stop = asyncio.Event()
    # One that waits for the lease is well, too, and shows it.
    if leadership is not None and not await _first(stop, leadership.acquire(), telemetry.pulse.run()):
        return
    loops = [_watch(fleet, kube, settings, stop), fleet.run(), telemetry.pulse.run()]
    await _first(stop, *loops, *([leadership.hold()] if leadership is not None else []))


async def _first(stop: asyncio.Event, *loops: Awaitable[None]) -> bool:
    """Run the loops until one ends, whose error is raised, or until somebody asks to stop: then it answers False."""
    _mind_signals(stop)
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((*tasks, stopped), return_when=asyncio.FIRST_COMPLETED)
    ended = [task for task in tasks if task.done()]
    for task in (*tasks, stopped):
        task.cancel()
    await asyncio.gather(*tasks, stopped, return_exceptions=True)
    for task in ended:
        task.result()
    return not stop.is_set()


def _mind_signals(stop: asyncio.Event) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)


async def _watch(fleet: Fleet, kube: Kube, settings: Settings, stop: asyncio.Event) -> None:
    """Kopf's part, until cancelled. Its own `operator()` would end every task of the loop, ours too, and take five
    seconds for that."""
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.posting.enabled = False
    kopf_settings.scanning.disabled = True
    tasks = await kopf.spawn_tasks(
        registry=registry(fleet, kube),
        settings=kopf_settings,
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
    _mind_signals(stop)  # Kopf has put its own handlers in their place
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=STOP_SECONDS)


def main() -> int:
    """`python -m dapo_operator`: 0 after a signal, 1 when the lease was lost or the API server could not be used."""
    settings = Settings.of(os.environ)
    set_up(settings.log_level, as_json=settings.log_format == "json")
    # It tells of each event of each job that it was handled.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(operate(settings))
    except (LeadershipLostError, kopf.LoginError) as error:
        logger.error("%s", error)
        return 1
    return 0
