"""Kubernetes Events: posted beside the work, never in its way."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dapo_core.naming import API_VERSION, KIND
from dapo_operator.jobs.actions import Event
from dapo_operator.jobs.job import Job
from dapo_operator.kube.client import Kube, Object
from dapo_operator.kube.clock import stamp
from dapo_operator.kube.errors import ApiError, ExistsError
from dapo_operator.kube.resources import EVENTS

logger = logging.getLogger(__name__)

# More than this waiting means that the API server has other worries; what is told is in the status as well.
MAX_WAITING: Final = 10_000
MAX_MESSAGE: Final = 1000
COMPONENT: Final = "dapo-operator"


class Story:
    """Posts events one after the other."""

    def __init__(self, kube: Kube, now: Callable[[], float]) -> None:
        self._kube, self._now = kube, now
        self._waiting: asyncio.Queue[Object] = asyncio.Queue(MAX_WAITING)
        self._told = 0

    def tell(self, job: Job, event: Event) -> None:
        """Post it, some time soon."""
        now = self._now()
        self._told = max(self._told + 1, int(now * 1e6))
        try:
            self._waiting.put_nowait(event_object(job, event, now, self._told))
        except asyncio.QueueFull:
            logger.warning("Too many events wait; left out: %s", event.message)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            body = await self._waiting.get()
            try:
                await self._kube.create(EVENTS, body)
            except ExistsError:
                continue
            except ApiError as error:
                logger.warning("An event could not be posted: %s", error.message)


def event_object(job: Job, event: Event, now: float, order: int) -> Object:
    """The Event. kubectl sorts by whole seconds, and those of one second by name: `order` keeps the story's."""
    at = stamp(now)
    message = event.message if len(event.message) <= MAX_MESSAGE else f"{event.message[: MAX_MESSAGE - 1]}…"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{order:016x}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": message,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
