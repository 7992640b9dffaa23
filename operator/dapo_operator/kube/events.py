"""Kubernetes Events, posted in the background so that reconciling never waits for them. What is said again becomes a
series: one object whose count and time are updated, with the fields of events.k8s.io/v1. It is written as v1, which has
the times as well by which `kubectl describe` sorts."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.objects import EVENTS, ApiError, ExistsError, NotFoundError, Object, ObjectReference, timestamp

logger = logging.getLogger(__name__)

# With more than this waiting the API server has bigger problems; the object's status says the same.
MAX_WAITING: Final = 10_000
# The API server's limit is 1,024 bytes.
MAX_BYTES: Final = 1000
# API servers forget an Event an hour after its last write.
SERIES_SECONDS: Final = 3000.0
MAX_SERIES: Final = 10_000
EventType = Literal["Normal", "Warning"]


@dataclass
class _Series:
    """An Event that may be repeated: its name, how often it was posted, and when last (Unix seconds)."""

    name: str
    count: int
    last: float


@dataclass(frozen=True)
class _Said:
    """What is said about an object."""

    about: ObjectReference
    type: EventType
    reason: str
    message: str
    at: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.about.uid, self.type, self.reason, self.message


class EventPoster:
    """Posts Events one after the other, as `component`."""

    def __init__(self, kube: KubeClient, now: Callable[[], float], component: str, instance: str = "") -> None:
        self._kube, self._now, self._component = kube, now, component
        self._instance = (instance or component)[:128]
        self._waiting: asyncio.Queue[_Said] = asyncio.Queue(MAX_WAITING)
        self._series: dict[tuple[str, str, str, str], _Series] = {}
        self._order = 0

    def post(self, about: ObjectReference, kind: EventType, reason: str, message: str) -> None:
        """Queue an Event; never raises."""
        try:
            self._waiting.put_nowait(_Said(about, kind, reason, message, self._now()))
        except asyncio.QueueFull:
            logger.warning("Too many events are waiting to be posted; dropped: %s", message)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            said = await self._waiting.get()
            try:
                await self._post(said)
            except ApiError as error:
                logger.warning("Could not post an event: %s", error.message)

    async def _post(self, said: _Said) -> None:
        series = self._series.pop(said.key, None)
        if series is None or said.at - series.last >= SERIES_SECONDS or not await self._repeat(series, said):
            series = _Series(self._new_name(said), 1, said.at)
            try:
                await self._kube.create(EVENTS, self._event(series.name, said))
            except ExistsError:
                return
        self._series[said.key] = series
        if len(self._series) > MAX_SERIES:
            del self._series[next(iter(self._series))]

    async def _repeat(self, series: _Series, said: _Said) -> bool:
        """Count it once more; False when somebody deleted the Event."""
        series.count, series.last = series.count + 1, max(series.last, said.at)
        repeated = {"count": series.count, "lastObservedTime": _micro_time(said.at)}
        change = {"series": repeated, "count": series.count, "lastTimestamp": timestamp(said.at)}
        try:
            await self._kube.patch(EVENTS, said.about.namespace, series.name, change)
        except NotFoundError:
            return False
        return True

    def _new_name(self, said: _Said) -> str:
        """kubectl sorts Events of one time by name."""
        self._order = max(self._order + 1, int(said.at * 1e6))
        return f"{said.about.name}.{self._order:016x}"

    def _event(self, name: str, said: _Said) -> Object:
        about = said.about
        return {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "namespace": about.namespace,
                "uid": about.uid,
            },
            "type": said.type,
            "reason": said.reason,
            "action": "Reconcile",
            "message": _cut(said.message),
            "eventTime": _micro_time(said.at),
            "firstTimestamp": timestamp(said.at),
            "lastTimestamp": timestamp(said.at),
            "count": 1,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def _cut(message: str) -> str:
    encoded = message.encode()
    return message if len(encoded) <= MAX_BYTES else f"{encoded[:MAX_BYTES].decode(errors='ignore')}…"


def _micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
