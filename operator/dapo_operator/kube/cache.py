"""What the watches know of all jobs' children, by job. Written by informers, and at once by whoever made a child."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from dapo_core.naming import LABEL_JOB
from dapo_operator.jobs.builders.common import DIGEST
from dapo_operator.jobs.observed import Pod, owner_of, pod_of

JobKey = tuple[str, str]
Raw = Mapping[str, Any]
T = TypeVar("T")

# Objects whose end was seen are remembered for a while: an answer to a write may come after it.
TOMBSTONES: Final = 10_000


def key_of(raw: Raw) -> JobKey | None:
    """(namespace, job) of a child, by its labels."""
    meta = raw["metadata"]
    job = meta.get("labels", {}).get(LABEL_JOB)
    return (meta["namespace"], job) if job else None


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """A child with what tells its news from old ones."""

    value: T
    uid: str
    owner: str | None
    version: int


class Shelf(Generic[T]):
    """Children of one kind. `parse` makes a small value of an object; `changed` is called with the job of each news.

    What is not newer than what is known is dropped: an answer to a write may overtake the watch.
    """

    def __init__(
        self,
        parse: Callable[[Raw], T | None],
        changed: Callable[[JobKey], None],
        dropped: Callable[[JobKey, Seen[T]], None] = lambda key, seen: None,
    ) -> None:
        self._parse, self._changed, self._dropped = parse, changed, dropped
        self._jobs: dict[JobKey, dict[str, Seen[T]]] = {}
        self._dead: dict[str, None] = {}

    def of(self, key: JobKey) -> Mapping[str, Seen[T]]:
        """A job's children by name."""
        return self._jobs.get(key, {})

    def put(self, raw: Raw) -> None:
        """An object is there, or has changed."""
        key, value = key_of(raw), self._parse(raw)
        meta = raw["metadata"]
        if key is None or value is None or meta["uid"] in self._dead:
            return
        new = Seen(value, meta["uid"], owner_of(raw), int(meta["resourceVersion"]))
        children = self._jobs.setdefault(key, {})
        old = children.get(meta["name"])
        if old is None or old.version < new.version:
            children[meta["name"]] = new
            if old is None or old.value != new.value or old.uid != new.uid:
                self._changed(key)

    def drop(self, raw: Raw) -> None:
        """An object is gone."""
        key, meta = key_of(raw), raw["metadata"]
        if key is None:
            return
        self._bury(meta["uid"])
        old = self.of(key).get(meta["name"])
        if old is not None and old.uid == meta["uid"]:
            last = self._parse(raw)
            self._dropped(key, old if last is None else replace(old, value=last))
            self._forget(key, meta["name"])

    def keep(self, uids: set[str], namespace: str | None, version: str) -> None:
        """These are all there were at `version` in the namespace (in all when None)."""
        gone = [
            (key, name, seen)
            for key, children in self._jobs.items()
            if namespace in (None, key[0])
            for name, seen in children.items()
            if seen.uid not in uids and seen.version <= int(version)
        ]
        for key, name, seen in gone:
            self._bury(seen.uid)
            self._dropped(key, seen)
            self._forget(key, name)

    def _bury(self, uid: str) -> None:
        self._dead[uid] = None
        if len(self._dead) > TOMBSTONES:
            del self._dead[next(iter(self._dead))]

    def _forget(self, key: JobKey, name: str) -> None:
        children = self._jobs[key]
        del children[name]
        if not children:
            del self._jobs[key]
        self._changed(key)


class World:
    """Pods and support objects of all jobs."""

    def __init__(self, changed: Callable[[JobKey], None]) -> None:
        self.pods: Shelf[Pod] = Shelf(pod_of, changed, self._note_end)
        self._gone: dict[JobKey, list[tuple[str | None, Pod]]] = {}
        self._support: dict[str, Shelf[str]] = {}
        self._changed = changed

    def gone_of(self, key: JobKey, uid: str) -> tuple[Pod, ...]:
        """Pods of this very job that are gone, and whose last state says why: it may have been theirs for too short a
        time for anyone to look."""
        return tuple(pod for owner, pod in self._gone.get(key, ()) if owner == uid)

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._gone.pop(key, None)

    def _note_end(self, key: JobKey, seen: Seen[Pod]) -> None:
        pod = seen.value
        if pod.disruption is None and pod.exit_code is None:
            return
        # Only the newest attempt's matter.
        kept = [each for each in self._gone.get(key, ()) if each[1].attempt >= pod.attempt]
        self._gone[key] = [*kept, (seen.owner, replace(pod, deleting=True))]
        if len(self._gone) > TOMBSTONES:
            del self._gone[next(iter(self._gone))]

    def support(self, kind: str) -> Shelf[str]:
        """The shelf of one kind of support objects: their digests."""
        return self._support.setdefault(kind, Shelf(_digest, self._changed))

    def pods_of(self, key: JobKey, uid: str) -> tuple[Pod, ...]:
        """The pods that carry a job's name, each with whether it is this very job's."""
        found = self.pods.of(key).values()
        return tuple(seen.value if seen.owner == uid else replace(seen.value, owned=False) for seen in found)

    def support_of(self, key: JobKey, uid: str) -> dict[tuple[str, str], str]:
        """Digests of this very job's support objects by kind and name."""
        return {
            (kind, name): seen.value
            for kind, shelf in self._support.items()
            for name, seen in shelf.of(key).items()
            if seen.owner == uid
        }


def _digest(raw: Raw) -> str:
    digest: str = raw["metadata"].get("annotations", {}).get(DIGEST, "")
    return digest
