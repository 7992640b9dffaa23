"""One life of an operator process in a simulated cluster, in virtual time; it may be killed between two writes."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from fake_kube import FakeKube, Object
from simulated_poison import Turns, reconciler_class
from simulated_queues import RESERVED, cache_of, reservation_resources

from dapo_operator.children import WATCHED, Children, JobKey
from dapo_operator.executor import Executor
from dapo_operator.job_state import JobState
from dapo_operator.jobs.dapojob import Job
from dapo_operator.jobs.job_objects import Site
from dapo_operator.kube.informer import report
from dapo_operator.kube.objects import PODS, ObjectReference, Resource
from dapo_operator.metadata_store import MetadataStore
from dapo_operator.node_cache import NodeCache
from dapo_operator.reconciler import Reconciler
from dapo_operator.shared import Shared
from dapo_operator.telemetry.instrumentation import Telemetry

NAMESPACE = "team"
KEPT_EVENTS = 20_000
SPEC = {
    "topology": {"mode": "Separated", "rollout": {"replicas": 2}},
    "runPolicy": {
        "gracePeriodSeconds": 20,
        "startTimeoutSeconds": 300,
        "backoffSeconds": 1,
        "maxRestarts": 1000,
        "restart": "InPlace",
    },
}


class OperatorDied(BaseException):
    """The process is gone in the middle of what it did."""


@dataclass
class Posted:
    """The reasons of the events that were posted."""

    reasons: list[str] = field(default_factory=list)

    def post(self, about: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Keep the reason."""
        self.reasons.append(reason)


class ReparsedState(JobState):
    """What an operator keeps of a job. To parse a spec again after each death of an operator would take half of the
    time of a simulation; `parsed`, by UID, are the jobs as earlier lives have parsed them."""

    def __init__(self, raw: Object, site: Site, parsed: dict[str, Job]) -> None:
        super().__init__(raw, site)
        self._known = parsed

    def _parsed(self) -> Job:
        if self._job is None:
            self._job = self._known.get(self.uid)
        job = super()._parsed()
        if job.kept is None:  # otherwise it is made from a file that each operator reads for itself
            self._known[self.uid] = job
        return job


@dataclass
class Operator:
    """One life of an operator process: what it knows is gone when it dies, but for `parsed`, if lives share it."""

    kube: FakeKube
    image: str = "t"
    dice: random.Random = field(default_factory=random.Random)
    reconcilers: dict[JobKey, Reconciler] = field(default_factory=dict)
    due: dict[JobKey, float] = field(default_factory=dict)
    seen: int = 0
    turns: Turns = field(default_factory=Turns)
    events: Posted = field(default_factory=Posted)
    parsed: dict[str, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.children = Children(self._wake)
        self.nodes = NodeCache(self.children.node_changed)
        store = MetadataStore(None, self.kube.now)
        executor = Executor(self.kube, self.children)  # type: ignore[arg-type]
        site, telemetry = Site(image=self.image), Telemetry()
        self.shared = Shared(
            executor, self.children, store, self.events, site, self.kube.now, telemetry, self.nodes, self.dice
        )
        self.relist()

    def relist(self) -> None:
        """A start, or a watch that got 410: only what exists now is known."""
        self.seen = len(self.kube.events)
        version = str(10**9)
        for kind, resource in (("Pod", PODS), *WATCHED.items()):
            cache = self.children.pods if kind == "Pod" else self.children.support(kind)
            version = asyncio_run(self.kube.list(resource, None))[1]
            for raw in self.kube.of_kind(kind):
                report(cache.put, raw, resource)
            cache.keep({raw["metadata"]["uid"] for raw in self.kube.of_kind(kind)}, None, version)
        for name, resource in reservation_resources():
            reserved = [raw for kind in RESERVED for raw in self.kube.of_kind(kind) if _is_of(raw, resource)]
            reservations = self.children.reservations[name]
            for raw in reserved:
                report(reservations.put, raw, resource)
            reservations.keep({raw["metadata"]["uid"] for raw in reserved}, None, version)
        for raw in self.kube.of_kind("DAPOJob"):
            self._job("MODIFIED", raw)

    def hear(self, until: float) -> None:
        """The watch events up to a moment, in order."""
        events = self.kube.events
        while self.seen < len(events) and events[self.seen][0] <= until:
            _, kind, raw = events[self.seen]
            self.seen += 1
            if raw["kind"] == "DAPOJob":
                self._job(kind, raw)
            elif raw["kind"] in ("Pod", *WATCHED):
                cache: Any = self.children.pods if raw["kind"] == "Pod" else self.children.support(raw["kind"])
                report(cache.drop if kind == "DELETED" else cache.put, raw, PODS)
            elif raw["kind"] in RESERVED:
                reservations = cache_of(self.children, raw)
                report(reservations.drop if kind == "DELETED" else reservations.put, raw, PODS)
        if self.seen > KEPT_EVENTS:
            del events[: self.seen]
            self.seen = 0

    def pass_time(self, seconds: float) -> None:
        """Some seconds without a fault: the watch tells all that happened, and pods that are deleted are gone after."""
        self.kube.time += seconds
        self.hear(self.kube.time)
        self.work()
        for pod in self.kube.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                self.kube.remove((PODS.plural, NAMESPACE, pod["metadata"]["name"]))

    def work(self) -> None:
        """One turn of every reconciler that was woken, or whose time has come."""
        for key in [key for key, at in self.due.items() if at <= self.kube.now()]:
            reconciler = self.reconcilers.get(key)
            if reconciler is None or reconciler.gone:
                self.due.pop(key, None)
                self.reconcilers.pop(key, None)
                continue
            self.due[key] = float("inf")
            self.turns.take(key, self.kube.now())
            wait = asyncio_run(reconciler.reconcile())
            self.due[key] = min(self.due.get(key, float("inf")), self.kube.now() + wait)

    def _wake(self, key: JobKey) -> None:
        self.due[key] = self.kube.now()

    def _job(self, kind: str, raw: Object) -> None:
        key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
        reconciler = self.reconcilers.get(key)
        if reconciler is not None and reconciler.state.uid != raw["metadata"]["uid"]:
            reconciler = None
        if kind == "DELETED":
            self.reconcilers.pop(key, None)
        elif reconciler is None:
            reconciler = self.reconcilers[key] = reconciler_class(key)(key, self.shared, raw)
            reconciler.state = ReparsedState(raw, self.shared.site, self.parsed)
        else:
            reconciler.update(raw)
        self._wake(key)


def _is_of(raw: Object, resource: Resource) -> bool:
    return bool(raw["apiVersion"] == resource.api_version)


def asyncio_run(call: Any) -> Any:
    """Run to the end; nothing of the fake ever waits."""
    return _LOOP.run_until_complete(call)


_LOOP = asyncio.new_event_loop()
