"""Kubernetes Events, posted in the background so that reconciling never waits for them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Literal

from dapo_operator.kube.api_errors import ApiError, ExistsError
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.objects import EVENTS, Object, ObjectReference, timestamp

logger = logging.getLogger(__name__)

# With more than this waiting the API server has bigger problems; the object's status says the same.
MAX_WAITING: Final = 10_000
MAX_MESSAGE: Final = 1000


class EventPoster:
    """Posts Events one after the other, as `component`."""

    def __init__(self, kube: KubeClient, now: Callable[[], float], component: str) -> None:
        self._kube, self._now, self._component = kube, now, component
        self._waiting: asyncio.Queue[Object] = asyncio.Queue(MAX_WAITING)
        self._order = 0

    def post(self, about: ObjectReference, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Queue an Event; never raises."""
        now = self._now()
        self._order = max(self._order + 1, int(now * 1e6))
        event = event_object(about, kind, reason, message, now, self._order)
        event |= {"source": {"component": self._component}, "reportingComponent": self._component}
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            logger.warning("Too many events are waiting to be posted; dropped: %s", message)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._kube.create(EVENTS, event)
            except ExistsError:
                continue
            except ApiError as error:
                logger.warning("Could not post an event: %s", error.message)


def event_object(
    about: ObjectReference, kind: Literal["Normal", "Warning"], reason: str, message: str, now: float, order: int
) -> Object:
    """The Event without its source. kubectl sorts by whole seconds, then by name: `order` keeps those of one second."""
    at = timestamp(now)
    short = message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name}.{order:016x}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        },
        "type": kind,
        "reason": reason,
        "message": short,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
