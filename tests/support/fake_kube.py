"""The Kubernetes API in memory, with virtual time: what `kube.client.KubeClient` promises, and a cluster behind it.

It keeps to the rules the operator relies on: names are unique, versions count up, a write with an old version or
another UID is refused, deletion is graceful and waits for finalizers, and children go when their owner is gone.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.kube.objects import PODS, ApiError, Object, Resource, error_of, timestamp

Key = tuple[str, str, str]
Objects = list[Object]  # FakeKube.list hides the word in its class


class FakeKube:
    """`fault` is asked before and after each write, and may raise: before, nothing was done; after, only the answer
    is lost. `deletions` are the objects that were deleted through the client, as they were before."""

    def __init__(self, seed: int, start: float) -> None:
        self.random = random.Random(seed)
        self.time = start
        self.objects: dict[Key, Object] = {}
        self._kinds: dict[str, dict[Key, Object]] = {}
        self._owned: dict[str, dict[Key, None]] = {}
        self.events: list[tuple[float, str, Object]] = []
        self.writes: dict[str, int] = {}
        self.fault: Callable[[str, bool], None] = lambda what, after: None
        self.stuck: set[str] = set()
        self.deletions: list[Object] = []
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    def now(self) -> float:
        """Virtual Unix seconds."""
        return self.time

    # What the operator calls.

    async def get(self, resource: Resource, namespace: str, name: str, sub: str = "", **query: str) -> Object:
        """One object; it has no subresources."""
        return self._existing(resource, namespace, name)

    async def list(
        self, resource: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[list[Object], str]:
        """All objects, of one job where a label is named, and the newest version."""
        label, _, wanted = labels.partition("=")
        found = [
            raw
            for (plural, place, _), raw in self.objects.items()
            if plural == resource.plural
            and namespace in (None, place)
            and (not labels or (raw["metadata"].get("labels") or {}).get(label, "") in ([wanted] if wanted else _ANY))
        ]
        return found, str(next(self._versions))

    async def create(self, resource: Resource, body: Object, dry_run: bool = False) -> Object:
        """POST."""
        self._before(f"create {resource.plural}")
        meta = body["metadata"]
        key = (resource.plural, meta["namespace"], meta["name"])
        if key in self.objects:
            raise error_of(409, {"reason": "AlreadyExists", "message": f"{key} already exists"})
        raw = dict(body)
        raw["metadata"] = {**meta, "uid": f"uid-{next(self._uids)}", "creationTimestamp": timestamp(self.time)}
        raw["metadata"].setdefault("generation", 1)
        if not dry_run:
            raw = self._write(key, raw)
        self._after(f"create {resource.plural}")
        return raw

    async def apply(self, resource: Resource, body: Object) -> Object:
        """Server-side apply, of whole objects."""
        meta = body["metadata"]
        key = (resource.plural, meta["namespace"], meta["name"])
        if key not in self.objects:
            return await self.create(resource, body)
        self._before(f"apply {resource.plural}")
        raw = {**self.objects[key], **{k: v for k, v in body.items() if k != "metadata"}}
        raw["metadata"] = {**self.objects[key]["metadata"], **meta}
        raw = self._write(key, raw)
        self._after(f"apply {resource.plural}")
        return raw

    async def apply_status(self, resource: Resource, body: Object) -> Object:
        """Server-side apply of conditions."""
        self._before(f"apply status of {resource.plural}")
        meta = body["metadata"]
        raw = self._existing(resource, meta["namespace"], meta["name"])
        self._check(raw, meta["uid"], None)
        known = {each["type"]: each for each in raw.get("status", {}).get("conditions", ())}
        known |= {each["type"]: each for each in body["status"]["conditions"]}
        changed = {**raw, "status": {**raw.get("status", {}), "conditions": list(known.values())}}
        written = self._write((resource.plural, meta["namespace"], meta["name"]), changed)
        self._after(f"apply status of {resource.plural}")
        return written

    async def patch(self, resource: Resource, namespace: str, name: str, change: Object) -> Object:
        """Merge patch of metadata."""
        self._before(f"patch {resource.plural}")
        raw = self._existing(resource, namespace, name)
        wanted = change["metadata"]
        self._check(raw, wanted.get("uid"), wanted.get("resourceVersion"))
        fields = {key: value for key, value in wanted.items() if key not in ("uid", "resourceVersion", "labels")}
        labels = raw["metadata"].get("labels", {}) | wanted.get("labels", {})
        changed = {**raw, "metadata": {**raw["metadata"], **fields, **({"labels": labels} if labels else {})}}
        written = self._write((resource.plural, namespace, name), changed)
        self._after(f"patch {resource.plural}")
        return written

    async def put_status(self, resource: Resource, body: Object) -> Object:
        """PUT of the status subresource."""
        self._before("status")
        meta = body["metadata"]
        raw = self._existing(resource, meta["namespace"], meta["name"])
        self._check(raw, meta.get("uid"), meta["resourceVersion"])
        self.writes[meta["uid"]] = self.writes.get(meta["uid"], 0) + 1
        changed = {**raw, "status": body["status"]}
        written = self._write((resource.plural, meta["namespace"], meta["name"]), changed)
        self._after("status")
        return written

    async def delete(
        self, resource: Resource, namespace: str, name: str, uid: str | None = None, grace_seconds: int | None = None
    ) -> Object:
        """DELETE: pods get their grace period, unless it is zero or they are over."""
        self._before(f"delete {resource.plural}")
        raw = self._existing(resource, namespace, name)
        self._check(raw, uid, None)
        self.deletions.append(raw)
        if resource in (PODS, JOBS):
            self.mark_deleted(raw, grace_seconds)
        elif raw["metadata"].get("finalizers"):
            self.keep(resource, raw)
        else:
            self.remove((resource.plural, namespace, name))
        self._after(f"delete {resource.plural}")
        return self.objects.get((resource.plural, namespace, name), raw)

    # What people and the cluster do.

    def mark_deleted(self, raw: Object, grace_seconds: int | None = None) -> None:
        """Ask for an object's end."""
        meta = raw["metadata"]
        pod = raw["kind"] == "Pod"
        key = (PODS.plural if pod else JOBS.plural, meta["namespace"], meta["name"])
        grace = grace_seconds if grace_seconds is not None else raw["spec"].get("terminationGracePeriodSeconds", 0)
        over = raw.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if pod and (grace == 0 or over):
            self.remove(key)
        elif "deletionTimestamp" not in meta:
            self._write(
                key, {**raw, "metadata": {**meta, "deletionTimestamp": timestamp(self.time + (grace if pod else 0))}}
            )
        if not pod:
            self._finish_deletion(key)

    def keep(self, resource: Resource, raw: Object) -> None:
        """An object is deleted, and stays until somebody takes its finalizers off."""
        if "deletionTimestamp" not in raw["metadata"]:
            self.insert(resource, {**raw, "metadata": {**raw["metadata"], "deletionTimestamp": timestamp(self.time)}})

    def update(self, raw: Object, **fields: Any) -> None:
        """Change top-level fields of an object, such as its status or (with a new generation) its spec."""
        meta = dict(raw["metadata"])
        if "spec" in fields and raw["kind"] == "DAPOJob":
            meta["generation"] += 1
        plural = PODS.plural if raw["kind"] == "Pod" else JOBS.plural
        self._write((plural, meta["namespace"], meta["name"]), {**raw, "metadata": meta, **fields})

    def insert(self, resource: Resource, raw: Object) -> None:
        """Somebody else creates an object."""
        meta = raw["metadata"]
        self._write((resource.plural, meta["namespace"], meta["name"]), raw)

    def remove(self, key: Key) -> None:
        """An object is gone, and with it what it owned."""
        raw = self.objects.pop(key)
        del self._kinds[raw["kind"]][key]
        raw = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(self._versions))}}
        self.events.append((self.time, "DELETED", raw))
        uid = raw["metadata"]["uid"]
        for owner in raw["metadata"].get("ownerReferences", ()):
            self._owned.get(owner["uid"], {}).pop(key, None)
        for child_key in [*self._owned.pop(uid, ())]:
            if child_key[0] == PODS.plural:
                self.mark_deleted(self.objects[child_key])
            else:
                self.remove(child_key)

    def of_kind(self, kind: str) -> "Objects":
        """All objects of a kind."""
        return list(self._kinds.get(kind, {}).values())

    def _finish_deletion(self, key: Key) -> None:
        raw = self.objects.get(key)
        if raw is not None and "deletionTimestamp" in raw["metadata"] and not raw["metadata"].get("finalizers"):
            self.remove(key)

    def _existing(self, resource: Resource, namespace: str, name: str) -> Object:
        raw = self.objects.get((resource.plural, namespace, name))
        if raw is None:
            raise error_of(404, {"reason": "NotFound", "message": f"{resource.plural} {name} not found"})
        return raw

    def _check(self, raw: Object, uid: str | None, version: str | None) -> None:
        meta = raw["metadata"]
        if (uid is not None and uid != meta["uid"]) or (version is not None and version != meta["resourceVersion"]):
            raise error_of(409, {"reason": "Conflict", "message": "the object has been modified"})

    def _write(self, key: Key, raw: Object) -> Object:
        """What is stored is never changed again, so it may be shared."""
        raw = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(self._versions))}}
        kind = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = self._kinds.setdefault(raw["kind"], {})[key] = raw
        for owner in raw["metadata"].get("ownerReferences", ()):
            self._owned.setdefault(owner["uid"], {})[key] = None
        self.events.append((self.time, kind, raw))
        if raw["kind"] == "DAPOJob":
            self._finish_deletion(key)
        return raw

    def _before(self, what: str) -> None:
        self.fault(what, False)

    def _after(self, what: str) -> None:
        self.fault(what, True)


class _Any:
    def __contains__(self, value: str) -> bool:
        return bool(value)


_ANY = _Any()

__all__ = ["ApiError", "FakeKube"]
