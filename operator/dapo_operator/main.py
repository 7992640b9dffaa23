"""The wiring: Kopf watches DAPOJobs and hands them to the controller."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable
from typing import Any, Final

import kopf

from dapo_core.addresses import every_interface
from dapo_core.naming import GROUP, PLURAL, VERSION
from dapo_operator.controller import Controller
from dapo_operator.kube.client import PAGE, KubeClient
from dapo_operator.kube.connection import NoClusterError, connect
from dapo_operator.kube.leadership import Leadership, LeadershipLostError
from dapo_operator.kube.lease import Fence, KubeLease
from dapo_operator.kube.rate_limit import RateLimit
from dapo_operator.settings import OperatorSettings
from dapo_operator.telemetry.health import TelemetryServer
from dapo_operator.telemetry.instrumentation import Telemetry
from dapo_operator.telemetry.logs import set_up

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 1.0


def registry(controller: Controller, kube: KubeClient) -> kopf.OperatorRegistry:
    """Kopf's handlers."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(
            server=kube.server,
            default_namespace=kube.connection.namespace,
            aiohttp_session=kube.open_session(),
        )

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def observe(event: kopf.RawEvent, **_: Any) -> None:
        controller.observe(event["type"], event["object"])

    return handlers


async def operate(settings: OperatorSettings) -> None:
    """Run until a signal asks to stop. Raises LeadershipLostError when another replica may have taken over."""
    leadership: Leadership | None = None
    telemetry = Telemetry()
    fence = Fence(lambda: leadership is None or leadership.holds())
    limit = RateLimit(settings.requests_per_second, settings.requests_burst)
    kube = KubeClient(await connect(), (fence, limit, telemetry.middleware))
    if settings.lease:
        namespace = settings.lease_namespace or kube.connection.namespace or "default"
        leadership = Leadership(KubeLease(kube, namespace, settings.lease), settings.identity)
    controller = Controller(kube, settings, telemetry)
    telemetry.jobs = controller.conditions
    telemetry.metrics.leader.set_function(lambda: leadership is None or leadership.holds())
    server = TelemetryServer(
        every_interface(), settings.telemetry_port, telemetry.metrics.registry, telemetry.health.problems
    )
    server.start()
    try:
        await _lead(controller, kube, settings, leadership, telemetry)
    finally:
        await controller.stop()
        if leadership is not None:
            await leadership.release()
        await kube.close()
        server.stop()


async def _lead(
    controller: Controller,
    kube: KubeClient,
    settings: OperatorSettings,
    leadership: Leadership | None,
    telemetry: Telemetry,
) -> None:
    """Wait for the lease, then run until it is lost, a loop that all jobs depend on fails, or a signal asks to stop."""
    stop = asyncio.Event()
    # A replica that waits for the lease is healthy, too.
    if leadership is not None and not await _first(stop, leadership.acquire(), telemetry.health.run()):
        return
    loops = [_watch(controller, kube, settings, stop), controller.run(), telemetry.health.run()]
    await _first(stop, *loops, *([leadership.hold()] if leadership is not None else []))


async def _first(stop: asyncio.Event, *loops: Awaitable[None]) -> bool:
    """Run the loops until one ends, whose error is raised, or until `stop` is set; returns whether it is not set."""
    _handle_signals(stop)
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


def _handle_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _watch(controller: Controller, kube: KubeClient, settings: OperatorSettings, stop: asyncio.Event) -> None:
    """Kopf's watch, until cancelled. Its own `operator()` would end every task of the loop, including the operator's,
    and take five seconds for that."""
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.posting.enabled = False
    kopf_settings.scanning.disabled = True
    kopf_settings.watching.chunk_size = PAGE
    tasks = await kopf.spawn_tasks(
        registry=registry(controller, kube),
        settings=kopf_settings,
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
    _handle_signals(stop)  # Kopf has replaced the handlers
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
    settings = OperatorSettings.of(os.environ)
    set_up(settings.log_level, as_json=settings.log_format == "json")
    # Kopf logs every event of every job that it handled.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(operate(settings))
    except (LeadershipLostError, NoClusterError) as error:
        logger.error("%s", error)
        return 1
    return 0
