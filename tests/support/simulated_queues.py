"""Kueue and Volcano as far as the operator meets them: one queue that admits so many Workloads, and takes some back."""

import random
from typing import Any, Final

from fake_kube import FakeKube, Object

from dapo_core.naming import LABEL_ATTEMPT
from dapo_operator.children import Children
from dapo_operator.jobs.gangs.kueue import WORKLOAD_ANNOTATION
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.kube.cache import ObjectCache
from dapo_operator.kube.objects import Resource

# Kinds of reservations.
RESERVED: Final = ("Workload", "PodGroup")
QUOTA: Final = 3
# With it Kueue keeps a Workload of its own jobs, as any other controller may, until its pods are gone.
FINALIZER: Final = "kueue.x-k8s.io/resource-in-use"
WORKLOADS: Final = Resource("kueue.x-k8s.io/v1beta2", "workloads")


def gang_of(name: str) -> Object:
    """The gang scheduler of a simulated job, by its name."""
    if name.endswith(("3", "4")):
        return {"runPolicy": {"gang": {"scheduler": "kueue", "queue": "research"}}}
    return {"runPolicy": {"gang": {"scheduler": "volcano"}}} if name.endswith("5") else {}


def cache_of(children: Children, raw: Object) -> "ObjectCache[Any]":
    """Where the operator keeps a reservation."""
    resources = {scheduler.resource.api_version: name for name, scheduler in SCHEDULERS.items() if scheduler.resource}
    return children.reservations[resources[raw["apiVersion"]]]


def reservation_resources() -> list[tuple[str, Resource]]:
    """By scheduler, of those that are simulated."""
    found = [(name, SCHEDULERS[name].resource) for name in ("kueue", "volcano")]
    return [(name, resource) for name, resource in found if resource is not None]


class SimulatedQueues:
    """`step()` is a second of Kueue's: it admits the oldest first, and with `faults` evicts, and people interfere."""

    def __init__(self, seed: int, kube: FakeKube) -> None:
        self._random, self._kube = random.Random(seed), kube

    def step(self, faults: bool) -> None:
        """Admit, evict, delete."""
        self._keep()
        workloads = [raw for raw in self._kube.of_kind("Workload") if "deletionTimestamp" not in raw["metadata"]]
        free = QUOTA - sum(_holds(raw, "QuotaReserved") for raw in workloads)
        for raw in sorted(workloads, key=lambda raw: (raw["metadata"]["creationTimestamp"], raw["metadata"]["uid"])):
            if free > 0 and not _holds(raw, "QuotaReserved") and raw["spec"]["active"]:
                free -= 1
                self._change(raw, QuotaReserved="True", Admitted="True")
        if faults and workloads and self._random.random() < 0.03:
            raw = self._random.choice(self._kube.of_kind("Workload"))
            if "deletionTimestamp" in raw["metadata"]:
                return
            match self._random.randrange(4):
                case 0:
                    self._kube.keep(WORKLOADS, raw)
                case 1 if _holds(raw, "Admitted"):
                    self._change(raw, QuotaReserved="False", Admitted="False")
                case _ if _holds(raw, "Admitted"):
                    # It keeps its quota until the pods are gone, which its job has to say.
                    self._change(raw, Evicted="True")

    def _keep(self) -> None:
        """Put the finalizer on every other Workload, and take it off those whose pods are gone."""
        users = {pod["metadata"].get("annotations", {}).get(WORKLOAD_ANNOTATION) for pod in self._kube.of_kind("Pod")}
        for raw in self._kube.of_kind("Workload"):
            meta = raw["metadata"]
            kept = bool(meta.get("finalizers"))
            if "deletionTimestamp" not in meta:
                if not kept and int(meta["labels"][LABEL_ATTEMPT]) % 2:
                    self._kube.insert(WORKLOADS, {**raw, "metadata": {**meta, "finalizers": [FINALIZER]}})
            elif meta["name"] not in users:
                self._kube.remove((WORKLOADS.plural, meta["namespace"], meta["name"]))

    def waiting(self) -> int:
        """Workloads that would be admitted if there were quota."""
        return sum(not _holds(raw, "QuotaReserved") for raw in self._kube.of_kind("Workload"))

    def check(self) -> None:
        """No phantom reservation: a job has one of each attempt on record, and never two at once that count."""
        counted: dict[str, list[str]] = {}
        for kind in RESERVED:
            for raw in self._kube.of_kind(kind):
                if kind == "PodGroup" or _holds(raw, "QuotaReserved"):
                    counted.setdefault(_owner(raw), []).append(raw["metadata"]["name"])
        for names in counted.values():
            assert len(names) <= 2, f"{names} reserve room at once"

    def phantoms(self, pods: list[Object]) -> list[str]:
        """Reservations of jobs that are at rest: they have no pods, and wait for none."""
        busy = {_owner(pod) for pod in pods}
        live = {
            (raw["metadata"]["uid"], str(attempt["number"]))
            for raw in self._kube.of_kind("DAPOJob")
            for attempt in raw.get("status", {}).get("attempts", ())
            if attempt.get("endedAt") is None
        }
        return [
            raw["metadata"]["name"]
            for kind in RESERVED
            for raw in self._kube.of_kind(kind)
            if "deletionTimestamp" in raw["metadata"]
            or (_owner(raw), raw["metadata"]["labels"]["dapo.io/attempt"]) not in live
            or (_owner(raw) not in busy and _holds(raw, "QuotaReserved"))
        ]

    def _change(self, raw: Object, **conditions: str) -> None:
        known = {each["type"]: each for each in raw.get("status", {}).get("conditions", ())}
        known |= {kind: {"type": kind, "status": status} for kind, status in conditions.items()}
        self._kube.insert(WORKLOADS, {**raw, "status": {"conditions": list(known.values())}})


def _holds(raw: Object, kind: str) -> bool:
    conditions = raw.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _owner(raw: Object) -> str:
    uid: str = raw["metadata"]["ownerReferences"][0]["uid"]
    return uid
