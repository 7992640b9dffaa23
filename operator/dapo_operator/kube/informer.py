"""Keeps a cache of one kind of objects up to date: lists them once, watches them from then on, and lists them again
when the watch has lost events."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

from dapo_core.backoff import Backoff
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.objects import (
    ApiError,
    GoneError,
    NotFoundError,
    Object,
    RefusedError,
    Resource,
    StreamCutError,
)

logger = logging.getLogger(__name__)

BACKOFF: Final = Backoff(1.0, 15.0)
# An API server that was restored from an older copy does not always say that a version is gone: after this many
# failures in a row everything is listed again.
LIST_AFTER: Final = 3
# Whoever ends a watch sooner than this serves none; asking again at once would use up the rate limit of all requests.
SHORTEST_SECONDS: Final = 1.0
# Permissions that are optional are asked for again, since an administrator may add them.
REFUSED_SECONDS: Final = 600.0
# A kind that is not installed may be installed at any time.
ABSENT_SECONDS: Final = 60.0
Key = tuple[str, str]


class InformerSink(Protocol):
    """What an informer reports to."""

    def put(self, raw: Object) -> None:
        """An object exists, or has changed."""
        ...

    def drop(self, raw: Object) -> None:
        """An object was deleted; `raw` is its last state."""
        ...

    def keep(self, uids: set[str], namespace: str | None, version: str) -> None:
        """A complete list: objects not among these UIDs did not exist at `version`."""
        ...


class Informer:
    """Watches one resource in one namespace (None: all). `synced` is set once the first list is complete."""

    def __init__(
        self,
        kube: KubeClient,
        resource: Resource,
        namespace: str | None,
        labels: str,
        sink: InformerSink,
        metadata_only: bool = False,
        unless_refused: str = "",
    ) -> None:
        """`unless_refused`: what is missing without the permission to watch, or without the kind; asked for again every
        REFUSED_SECONDS or ABSENT_SECONDS."""
        self._unless_refused, self._refused = unless_refused, False
        self._kube, self._resource, self._namespace = kube, resource, namespace
        self._labels, self._sink, self._metadata_only = labels, sink, metadata_only
        self._version = ""
        self._failures = 0  # in a row
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """List and watch until cancelled, and retry after every error."""
        while True:
            try:
                if not self._version:
                    await self._list()
                began = time.monotonic()
                try:
                    await self._watch()
                except GoneError:
                    # What happened meanwhile is lost, deletions too: only a new list has it.
                    self._version = ""
                if time.monotonic() - began < SHORTEST_SECONDS:
                    self._failures += 1
                    await asyncio.sleep(BACKOFF.delay(self._failures - 1, random.random()))
                else:
                    self._failures = 0
            except (RefusedError, NotFoundError) as error:
                await asyncio.sleep(self._after_refusal(error))
            except ApiError as error:
                # A stream that was cut had worked until then, and says nothing against the version.
                cut = isinstance(error, StreamCutError)
                await asyncio.sleep(self._after_failure(error, 1 if cut else self._failures + 1))

    def _after_failure(self, error: ApiError, failures: int) -> float:
        self._failures = failures
        pause = BACKOFF.delay(failures, random.random())
        logger.warning("Watching %s: %s Retrying in %.1f s.", self._resource.plural, error.message, pause)
        if failures >= LIST_AFTER:
            self._version = ""
        return pause

    def _after_refusal(self, error: RefusedError | NotFoundError) -> float:
        if not self._unless_refused:
            return self._after_failure(error, self._failures + 1)
        if not self._refused:
            level = logging.INFO if isinstance(error, NotFoundError) else logging.WARNING
            logger.log(level, "May not watch %s: %s %s", self._resource.plural, error.message, self._unless_refused)
        self._refused, self._version = True, ""
        # There is nothing to wait for.
        self.synced.set()
        return REFUSED_SECONDS if isinstance(error, RefusedError) else ABSENT_SECONDS

    async def _list(self) -> None:
        uids, newest = set[str](), ""
        pages = self._kube.pages(self._resource, self._namespace, self._labels, self._metadata_only)
        async for page, version in pages:
            for raw in page:
                report(self._sink.put, raw, self._resource)
                uids.add(raw["metadata"]["uid"])
            newest = version
        self._sink.keep(uids, self._namespace, newest)
        self._version = newest
        self.synced.set()

    async def _watch(self) -> None:
        """A stream that breaks is continued from its last event by the next one."""
        stream = self._kube.watch(self._resource, self._namespace, self._version, self._labels, self._metadata_only)
        async for kind, raw in stream:
            if kind == "DELETED":
                report(self._sink.drop, raw, self._resource)
            elif kind != "BOOKMARK":
                report(self._sink.put, raw, self._resource)
            self._failures = 0
            self._version = raw["metadata"]["resourceVersion"]


def report(to: Callable[[Object], None], raw: Object, resource: Resource) -> None:
    """Call `to` with the object. One that cannot be understood must not end a watch that all jobs share."""
    try:
        to(raw)
    except Exception:
        meta = raw["metadata"]
        where = f"{meta.get('namespace')}/{meta['name']}"
        logger.exception("Ignored an update of %s %s that cannot be parsed.", resource.plural, where)
