"""All DAPOJobs: one reconciler each, what they share, and what wakes them."""

import asyncio
import logging
from collections import Counter
from typing import Final

from dapo_core.naming import LABEL_JOB
from dapo_operator.children import WATCHED, Children, JobKey
from dapo_operator.executor import Executor
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.kube.client import FIELD_MANAGER, KubeClient
from dapo_operator.kube.events import EventPoster
from dapo_operator.kube.informer import Informer
from dapo_operator.kube.objects import NODES, PODS, ApiError, NotFoundError, Object, version_of
from dapo_operator.metadata_store import MetadataStore
from dapo_operator.node_cache import NodeCache
from dapo_operator.reconciler import Reconciler
from dapo_operator.settings import OperatorSettings
from dapo_operator.shared import Shared
from dapo_operator.telemetry.instrumentation import Telemetry

logger = logging.getLogger(__name__)

AUDIT_SECONDS: Final = 300.0
WITHOUT_NODES: Final = (
    "Drains are not noticed before pods are evicted, nor lost nodes before Kubernetes deletes their pods. To change "
    "that, let the operator list and watch nodes (a ClusterRole; operator.watchNodes in the chart)."
)
WITHOUT_RESERVATIONS: Final = "Jobs cannot use this gang scheduler."


class Controller:
    """Everything that runs beside Kopf's watch of the DAPOJobs."""

    def __init__(self, kube: KubeClient, settings: OperatorSettings, telemetry: Telemetry) -> None:
        self._kube, self._settings = kube, settings
        self._reconcilers: dict[JobKey, Reconciler] = {}
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self.children = Children(self._changed)
        self.nodes = NodeCache(self.children.node_changed)
        self.store = MetadataStore(settings.metadata_url, kube.now)
        self.events = EventPoster(kube, kube.now, FIELD_MANAGER, settings.identity)
        self._shared = Shared(
            Executor(kube, self.children),
            self.children,
            self.store,
            self.events,
            settings.site,
            kube.now,
            telemetry,
            self.nodes,
        )
        self._synced = asyncio.Event()

    async def run(self) -> None:
        """Watch and reconcile until cancelled; reconcilers wait for the first complete lists. Raises the error of any
        loop that all jobs depend on."""
        namespaces: tuple[str | None, ...] = self._settings.namespaces or (None,)
        informers = [Informer(self._kube, PODS, namespace, LABEL_JOB, self.children.pods) for namespace in namespaces]
        informers += [
            Informer(self._kube, resource, namespace, LABEL_JOB, self.children.support(kind), metadata_only=True)
            for kind, resource in WATCHED.items()
            for namespace in namespaces
        ]
        informers += [
            Informer(self._kube, resource, namespace, LABEL_JOB, cache, unless_refused=WITHOUT_RESERVATIONS)
            for name, cache in self.children.reservations.items()
            if name in self._settings.gang_schedulers and (resource := SCHEDULERS[name].resource) is not None
            for namespace in namespaces
        ]
        async with asyncio.TaskGroup() as loops:
            for informer in informers:
                loops.create_task(informer.run())
            if self._settings.watch_nodes:
                # Nobody waits for it: what it reports wakes the jobs.
                nodes = Informer(self._kube, NODES, None, "", self.nodes, unless_refused=WITHOUT_NODES)
                loops.create_task(nodes.run())
            else:
                logger.info("Nodes are not watched (DAPO_WATCH_NODES). %s", WITHOUT_NODES)
            for loop in (self.store.run(), self.events.run(), self._audit(namespaces)):
                loops.create_task(loop)
            for informer in informers:
                await informer.synced.wait()
            self._synced.set()

    async def stop(self) -> None:
        """End all reconcilers; the cluster stays as it is."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def conditions(self) -> Counter[str]:
        """How many jobs have each condition True."""
        return Counter(kind for reconciler in list(self._reconcilers.values()) for kind in reconciler.conditions())

    def observe(self, kind: str | None, raw: Object) -> None:
        """An event of the watch of DAPOJobs: its type (None: the object comes from a list) and the object."""
        raw["metadata"].pop("managedFields", None)  # half of what a job would weigh in memory
        key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
        if kind == "DELETED":
            self._forget(key, raw["metadata"]["uid"])
            return
        reconciler = self._reconcilers.get(key)
        if reconciler is not None and reconciler.state.uid != raw["metadata"]["uid"]:
            # Another job of the same name: what is known about the old one does not apply to it.
            self._forget(key, reconciler.state.uid)
            reconciler = None
        if reconciler is None:
            self._begin(key, raw)
        else:
            reconciler.update(raw)

    def _begin(self, key: JobKey, raw: Object) -> None:
        reconciler = Reconciler(key, self._shared, raw)
        self._reconcilers[key] = reconciler
        self._tasks[key] = asyncio.create_task(self._work(key, reconciler), name=f"{key[0]}/{key[1]}")

    async def _work(self, key: JobKey, reconciler: Reconciler) -> None:
        await self._synced.wait()
        await reconciler.run()
        if self._reconcilers.get(key) is reconciler:
            del self._reconcilers[key], self._tasks[key]

    def _forget(self, key: JobKey, uid: str) -> None:
        reconciler = self._reconcilers.get(key)
        if reconciler is None or reconciler.state.uid != uid:
            return
        self._tasks.pop(key).cancel()
        del self._reconcilers[key]
        reconciler.leave()

    def _changed(self, key: JobKey) -> None:
        reconciler = self._reconcilers.get(key)
        if reconciler is not None:
            reconciler.wake()

    async def _audit(self, namespaces: tuple[str | None, ...]) -> None:
        """List all DAPOJobs every AUDIT_SECONDS, for changes that a hung watch missed."""
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            try:
                for namespace in namespaces:
                    await self._compare(namespace)
            except ApiError as error:
                logger.warning("Could not compare the list of DAPOJobs with the watch: %s", error.message)

    async def _compare(self, namespace: str | None) -> None:
        known = {key for key in self._reconcilers if namespace in (None, key[0])}
        items, _ = await self._kube.list(JOBS, namespace, metadata_only=True)
        listed = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in items}
        for key in known - listed.keys():
            if (reconciler := self._reconcilers.get(key)) is not None:
                self._forget(key, reconciler.state.uid)
        for key, item in listed.items():
            reconciler = self._reconcilers.get(key)
            if reconciler is None or version_of(item) > reconciler.state.version:
                try:
                    self.observe(None, await self._kube.get(JOBS, *key))
                except NotFoundError:
                    continue
