"""What the watches know about the pods and support objects of all jobs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from dapo_core.naming import LABEL_JOB
from dapo_operator.jobs.gangs.gang_scheduler import Reservation
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.jobs.job_objects import DIGEST
from dapo_operator.jobs.observed import Pod, pod_of
from dapo_operator.kube.cache import TOMBSTONES, Cached, ObjectCache
from dapo_operator.kube.objects import Resource

# (namespace, name) of a DAPOJob.
JobKey = tuple[str, str]

# Support objects that are watched, by kind.
WATCHED: Final = {
    "Service": Resource("v1", "services"),
    "ConfigMap": Resource("v1", "configmaps"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
}


class Children:
    """Pods and support objects of all jobs. `changed` is called with the job of each change."""

    def __init__(self, changed: Callable[[JobKey], None]) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache(LABEL_JOB, self._pod_of, changed, self._note_end)
        self._gone: dict[JobKey, list[tuple[str | None, Pod]]] = {}
        self._support: dict[str, ObjectCache[str]] = {}
        # By scheduler.
        self.reservations: Mapping[str, ObjectCache[Reservation]] = {
            name: ObjectCache(LABEL_JOB, scheduler.observe, changed)
            for name, scheduler in SCHEDULERS.items()
            if scheduler.resource is not None
        }
        self._changed = changed
        # Jobs that have, or had, pods on a node, in a known order: the simulation repeats a run by its seed.
        self._placed: dict[str, dict[JobKey, None]] = {}

    def node_changed(self, node: str) -> None:
        """Call `changed` with each job that has pods on this node."""
        placed = {key: None for key in self._placed.pop(node, ()) if self._is_on(key, node)}
        if placed:
            self._placed[node] = placed
        for key in placed:
            self._changed(key)

    def _is_on(self, key: JobKey, node: str) -> bool:
        return any(cached.value.node == node for cached in self.pods.of(key).values())

    def _pod_of(self, raw: Mapping[str, Any]) -> Pod | None:
        pod = pod_of(raw)
        if pod is not None and pod.node is not None:
            meta = raw["metadata"]
            self._placed.setdefault(pod.node, {})[meta["namespace"], meta["labels"].get(LABEL_JOB, "")] = None
        return pod

    def support(self, kind: str) -> ObjectCache[str]:
        """The cache of one kind of support objects; its values are their digests."""
        return self._support.setdefault(kind, ObjectCache(LABEL_JOB, _digest, self._changed))

    def pods_of(self, key: JobKey, uid: str) -> tuple[Pod, ...]:
        """The pods labeled with a job's name; `owned` tells whether the DAPOJob with this UID owns them."""
        cached = self.pods.of(key).values()
        return tuple(pod.value if pod.owner == uid else replace(pod.value, owned=False) for pod in cached)

    def gone_of(self, key: JobKey, uid: str) -> tuple[Pod, ...]:
        """Deleted pods of the DAPOJob with this UID whose last state tells why they ended, which may have lasted too
        briefly for a reconciliation to see it; and all deleted rollouts, whose names are not to come back."""
        return tuple(pod for owner, pod in self._gone.get(key, ()) if owner == uid)

    def support_of(self, key: JobKey, uid: str) -> dict[tuple[str, str], str]:
        """Digests of the support objects that the DAPOJob with this UID owns, by kind and name."""
        return {
            (kind, name): cached.value
            for kind, cache in self._support.items()
            for name, cached in cache.of(key).items()
            if cached.owner == uid
        }

    def reservations_of(self, key: JobKey, uid: str) -> tuple[Reservation, ...]:
        """The reservations that the DAPOJob with this UID owns, with any scheduler."""
        return tuple(
            cached.value
            for cache in self.reservations.values()
            for cached in cache.of(key).values()
            if cached.owner == uid
        )

    def forget(self, key: JobKey) -> None:
        """The job was deleted."""
        self._gone.pop(key, None)
        for jobs in self._placed.values():
            jobs.pop(key, None)
        for cache in self.reservations.values():
            # A kind that may not be watched is not reported as deleted.
            for name in list(cache.of(key)):
                cache.forget(key, name)

    def uid_of(self, key: JobKey, kind: str, name: str) -> str | None:
        """The UID of a support object; None when it is not known."""
        known = self.support(kind).of(key).get(name)
        return known.uid if known is not None else None

    def _note_end(self, key: JobKey, last: Cached[Pod]) -> None:
        pod = last.value
        if pod.disruption is None and pod.exit_code is None and pod.role != "rollout":
            return
        # Only those of the newest attempt matter.
        kept = [entry for entry in self._gone.get(key, ()) if entry[1].attempt >= pod.attempt]
        self._gone[key] = [*kept, (last.owner, replace(pod, deleting=True))]
        if len(self._gone) > TOMBSTONES:
            del self._gone[next(iter(self._gone))]


def _digest(raw: Mapping[str, Any]) -> str:
    digest: str = raw["metadata"].get("annotations", {}).get(DIGEST, "")
    return digest
