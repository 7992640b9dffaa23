"""A kind of object as it is in the cluster: listed once, watched from then on, listed again where the watch lost it."""

import asyncio
import logging
from typing import Final, Protocol

from dapo_operator.kube import Kube, Object
from dapo_operator.kube_errors import ApiError, GoneError
from dapo_operator.resources import Resource

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 1.0
BACKOFF_MAX_SECONDS: Final = 15.0
Key = tuple[str, str]


class Sink(Protocol):
    """Where an informer's news go."""

    def put(self, raw: Object) -> None:
        """An object is there, or has changed."""
        ...

    def drop(self, raw: Object) -> None:
        """An object is gone, as it was last."""
        ...

    def replace(self, items: list[Object], namespace: str | None, version: str) -> None:
        """These are all there were at `version`: what is not among them is gone, though nobody said so."""
        ...


class Informer:
    """Watches one kind in one namespace (or all) for as long as `run` is not cancelled."""

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        namespace: str | None,
        labels: str,
        sink: Sink,
        metadata_only: bool = False,
    ) -> None:
        self._kube, self._resource, self._namespace = kube, resource, namespace
        self._labels, self._sink, self._metadata_only = labels, sink, metadata_only
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """List and watch for ever; whatever the API server answers, it is asked again."""
        backoff = BACKOFF_SECONDS
        version = ""
        while True:
            try:
                if not version:
                    items, version = await self._kube.list(
                        self._resource, self._namespace, self._labels, self._metadata_only
                    )
                    self._sink.replace(items, self._namespace, version)
                    self.synced.set()
                version = await self._watch(version)
                backoff = BACKOFF_SECONDS
            except GoneError:
                # What went by meanwhile is lost, deletions too: only a new list tells.
                version = ""
            except ApiError as error:
                logger.warning("Watching %s: %s Again in %g s.", self._resource.plural, error.message, backoff)
                version = ""
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, BACKOFF_MAX_SECONDS)

    async def _watch(self, version: str) -> str:
        stream = self._kube.watch(self._resource, self._namespace, version, self._labels, self._metadata_only)
        async for kind, raw in stream:
            version = raw["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self._sink.drop(raw)
            elif kind != "BOOKMARK":
                self._sink.put(raw)
        return version
