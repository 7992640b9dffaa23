"""A kind of object as it is in the cluster: listed once, watched from then on, listed again where the watch lost it."""

import asyncio
import logging
from typing import Final, Protocol

from dapo_operator.kube.client import Kube, Object
from dapo_operator.kube.errors import ApiError, GoneError
from dapo_operator.kube.resources import Resource

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 1.0
BACKOFF_MAX_SECONDS: Final = 15.0
# An API server that came back with less than it had does not say that a version is gone, so at last one lists anyway.
LIST_AFTER: Final = 3
Key = tuple[str, str]


class Sink(Protocol):
    """Where an informer's news go."""

    def put(self, raw: Object) -> None:
        """An object is there, or has changed."""
        ...

    def drop(self, raw: Object) -> None:
        """An object is gone, as it was last."""
        ...

    def keep(self, uids: set[str], namespace: str | None, version: str) -> None:
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
        self._version = ""
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """List and watch for ever; whatever the API server answers, it is asked again."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                failures = 0
            except GoneError:
                # What went by meanwhile is lost, deletions too: only a new list tells.
                self._version = ""
            except ApiError as error:
                pause = min(BACKOFF_SECONDS * 2.0**failures, BACKOFF_MAX_SECONDS)
                logger.warning("Watching %s: %s Again in %g s.", self._resource.plural, error.message, pause)
                failures += 1
                if failures >= LIST_AFTER:
                    self._version = ""
                await asyncio.sleep(pause)

    async def _list(self) -> None:
        there, newest = set[str](), ""
        pages = self._kube.pages(self._resource, self._namespace, self._labels, self._metadata_only)
        async for page, version in pages:
            for raw in page:
                self._sink.put(raw)
                there.add(raw["metadata"]["uid"])
            newest = version
        self._sink.keep(there, self._namespace, newest)
        self._version = newest
        self.synced.set()

    async def _watch(self) -> None:
        """A stream that breaks goes on from where it was: what it missed, the next one tells."""
        stream = self._kube.watch(self._resource, self._namespace, self._version, self._labels, self._metadata_only)
        async for kind, raw in stream:
            if kind == "DELETED":
                self._sink.drop(raw)
            elif kind != "BOOKMARK":
                self._sink.put(raw)
            self._version = raw["metadata"]["resourceVersion"]
