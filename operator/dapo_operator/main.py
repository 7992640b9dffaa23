"""The wiring: Kopf watches DAPOJobs and hands them to the controller."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import kopf

from dapo_core.addresses import every_interface
from dapo_core.naming import GROUP, PLURAL, VERSION
from dapo_operator.controller import Controller
from dapo_operator.kube.client import PAGE, KubeClient
from dapo_operator.kube.connection import NoClusterError, connect
from dapo_operator.kube.leadership import Leadership, LeadershipLostError, RenewalLoop
from dapo_operator.kube.lease import Fence, KubeLease
from dapo_operator.kube.rate_limit import RateLimit
from dapo_operator.settings import OperatorSettings
from dapo_operator.telemetry.health import TelemetryServer
from dapo_operator.telemetry.instrumentation import Telemetry
from dapo_operator.telemetry.log_format import set_up

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
    telemetry = Telemetry()
    election = await Election.open(settings, telemetry) if settings.lease else None
    leads: Callable[[], bool] = election.leadership.holds if election is not None else lambda: True
    limit = RateLimit(settings.requests_per_second, settings.requests_burst)
    kube = KubeClient(await connect(), (Fence(leads), limit, telemetry.middleware))
    controller = Controller(kube, settings, telemetry)
    telemetry.jobs = controller.conditions
    telemetry.metrics.leader.set_function(leads)
    server = TelemetryServer(
        every_interface(), settings.telemetry_port, telemetry.metrics.registry, telemetry.health.problems
    )
    server.start()
    try:
        await _lead(controller, kube, settings, election, telemetry)
    finally:
        await controller.stop()
        if election is not None:
            await election.close()
        await kube.close()
        server.stop()


@dataclass(frozen=True)
class Election:
    """The election of this replica, on an event loop and a connection of its own: however busy the operator is, and
    whatever its other requests wait for, the lease is renewed."""

    leadership: Leadership
    loop: RenewalLoop
    _kube: KubeClient

    @classmethod
    async def open(cls, settings: OperatorSettings, telemetry: Telemetry) -> "Election":
        """Raises NoClusterError."""
        loop = RenewalLoop()
        try:
            kube = await loop.run(_client(telemetry))
        except BaseException:
            loop.close()
            raise
        namespace = settings.lease_namespace or kube.connection.namespace or "default"
        return cls(Leadership(KubeLease(kube, namespace, settings.lease), settings.identity), loop, kube)

    async def close(self) -> None:
        """Release the lease."""
        await self.loop.run(self.leadership.release())
        await self.loop.run(self._kube.close())
        self.loop.close()


async def _client(telemetry: Telemetry) -> KubeClient:
    return KubeClient(await connect(), (telemetry.middleware,))


async def _lead(
    controller: Controller,
    kube: KubeClient,
    settings: OperatorSettings,
    election: Election | None,
    telemetry: Telemetry,
) -> None:
    """Wait for the lease, then run until it is lost, a loop that all jobs depend on fails, or a signal asks to stop."""
    stop = asyncio.Event()
    if election is not None:
        # A replica that waits for the lease is healthy, too.
        acquired = election.loop.run(election.leadership.acquire())
        if not await _first(stop, acquired, telemetry.health.run()):
            return
    loops = [_watch(controller, kube, settings, stop), controller.run(), telemetry.health.run()]
    await _first(stop, *loops, *([election.loop.run(election.leadership.hold())] if election is not None else []))


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
