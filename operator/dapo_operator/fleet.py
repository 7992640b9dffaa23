"""All jobs of the operator: one worker each, what they share, and what wakes them."""

import asyncio
import logging
from collections import Counter
from typing import Final

from dapo_core.naming import LABEL_JOB
from dapo_operator.executor import Executor
from dapo_operator.kube.cache import JobKey, World
from dapo_operator.kube.client import Kube, Object
from dapo_operator.kube.errors import ApiError, NotFoundError
from dapo_operator.kube.events import Story
from dapo_operator.kube.informer import Informer
from dapo_operator.kube.resources import JOBS, PODS, WATCHED
from dapo_operator.settings import Settings
from dapo_operator.store import Store
from dapo_operator.telemetry.recorder import Telemetry
from dapo_operator.worker import Surroundings, Worker, version_of

logger = logging.getLogger(__name__)

AUDIT_SECONDS: Final = 300.0


class Fleet:
    """Everything that runs beside Kopf's watch of the DAPOJobs."""

    def __init__(self, kube: Kube, settings: Settings, telemetry: Telemetry) -> None:
        self._kube, self._settings = kube, settings
        self._workers: dict[JobKey, Worker] = {}
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self.world = World(self._changed)
        self.store = Store(settings.metadata_url, kube.now)
        self.story = Story(kube, kube.now)
        self._around = Surroundings(
            Executor(kube, self.world), self.world, self.store, self.story, settings.site, kube.now, telemetry
        )
        self._synced = asyncio.Event()

    async def run(self) -> None:
        """Watch and work until cancelled; workers wait until the first lists are there. Raises what breaks a loop that
        all depend on."""
        places: tuple[str | None, ...] = self._settings.namespaces or (None,)
        informers = [Informer(self._kube, PODS, place, LABEL_JOB, self.world.pods) for place in places]
        informers += [
            Informer(self._kube, resource, place, LABEL_JOB, self.world.support(kind), metadata_only=True)
            for kind, resource in WATCHED.items()
            for place in places
        ]
        async with asyncio.TaskGroup() as loops:
            for informer in informers:
                loops.create_task(informer.run())
            for loop in (self.store.run(), self.story.run(), self._audit(places)):
                loops.create_task(loop)
            await self._sync(informers)

    async def stop(self) -> None:
        """End all workers; the cluster stays as it is."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def conditions(self) -> Counter[str]:
        """How many jobs have each condition true."""
        return Counter(kind for worker in list(self._workers.values()) for kind in worker.conditions())

    def seen(self, kind: str | None, raw: Object) -> None:
        """News of a DAPOJob from Kopf's watch; `kind` is None for what its list had."""
        raw["metadata"].pop("managedFields", None)  # half of what a job would weigh in memory
        key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
        if kind == "DELETED":
            self._forget(key, raw["metadata"]["uid"])
            return
        worker = self._workers.get(key)
        if worker is not None and worker.raw["metadata"]["uid"] != raw["metadata"]["uid"]:
            # The same name and another job: what is known of the old one says nothing about it.
            self._forget(key, worker.raw["metadata"]["uid"])
            worker = None
        if worker is None:
            self._begin(key, raw)
        else:
            worker.update(raw)

    def _begin(self, key: JobKey, raw: Object) -> None:
        worker = Worker(key, self._around, raw)
        self._workers[key] = worker
        task = asyncio.create_task(self._work(key, worker), name=f"{key[0]}/{key[1]}")
        self._tasks[key] = task

    async def _work(self, key: JobKey, worker: Worker) -> None:
        await self._synced.wait()
        await worker.run()
        if self._workers.get(key) is worker:
            del self._workers[key], self._tasks[key]

    def _forget(self, key: JobKey, uid: str) -> None:
        worker = self._workers.get(key)
        if worker is None or worker.raw["metadata"]["uid"] != uid:
            return
        self._tasks.pop(key).cancel()
        del self._workers[key]
        worker.leave()

    def _changed(self, key: JobKey) -> None:
        worker = self._workers.get(key)
        if worker is not None:
            worker.wake()

    async def _sync(self, informers: list[Informer]) -> None:
        for informer in informers:
            await informer.synced.wait()
        self._synced.set()

    async def _audit(self, places: tuple[str | None, ...]) -> None:
        """Now and then a list of all DAPOJobs: what a watch that went silent did not tell."""
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            try:
                for place in places:
                    await self._compare(place)
            except ApiError as error:
                logger.warning("The list of DAPOJobs could not be compared: %s", error.message)

    async def _compare(self, place: str | None) -> None:
        known = {key for key in self._workers if place in (None, key[0])}
        items, _ = await self._kube.list(JOBS, place, metadata_only=True)
        there = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in items}
        for key in known - there.keys():
            if (worker := self._workers.get(key)) is not None:
                self._forget(key, worker.raw["metadata"]["uid"])
        for key, item in there.items():
            worker = self._workers.get(key)
            if worker is None or version_of(item) > version_of(worker.raw):
                try:
                    self.seen(None, await self._kube.get(JOBS, *key))
                except NotFoundError:
                    continue
