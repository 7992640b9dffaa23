"""The objects of one kind that a watch reports, grouped by a label. Written by an informer, and directly by whoever
changed an object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from dapo_operator.kube.objects import controller_uid, version_of

# (namespace, value of the label that groups the objects).
Group = tuple[str, str]
Raw = Mapping[str, Any]
T = TypeVar("T")

# UIDs of deleted objects are kept for a while: the response to an earlier write may arrive after the deletion.
TOMBSTONES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Cached(Generic[T]):
    """The small value kept of an object, and what tells newer states of it from older ones."""

    value: T
    uid: str
    owner: str | None
    version: int


class ObjectCache(Generic[T]):
    """Small values of objects by the group that label `label` puts them in; objects without it are ignored.

    `parse` makes the value (None: ignore the object). `changed` is called with the group of each change, `removed` also
    with the last value. A state that is not newer than the known one is dropped: the response to a write may overtake
    the watch.
    """

    def __init__(
        self,
        label: str,
        parse: Callable[[Raw], T | None],
        changed: Callable[[Group], None],
        removed: Callable[[Group, Cached[T]], None] = lambda group, last: None,
    ) -> None:
        self._label, self._parse, self._changed, self._removed = label, parse, changed, removed
        self._groups: dict[Group, dict[str, Cached[T]]] = {}
        self._dead: dict[str, None] = {}

    def of(self, group: Group) -> Mapping[str, Cached[T]]:
        """The objects of a group by name."""
        return self._groups.get(group, {})

    def put(self, raw: Raw) -> None:
        """An object exists, or has changed."""
        group, value = self._group_of(raw), self._parse(raw)
        meta = raw["metadata"]
        if group is None or value is None or meta["uid"] in self._dead:
            return
        new = Cached(value, meta["uid"], controller_uid(raw), version_of(raw))
        objects = self._groups.setdefault(group, {})
        old = objects.get(meta["name"])
        if old is None or old.version < new.version:
            objects[meta["name"]] = new
            if old is None or (old.value, old.uid, old.owner) != (new.value, new.uid, new.owner):
                self._changed(group)

    def drop(self, raw: Raw) -> None:
        """An object was deleted; `raw` is its last state."""
        group, meta = self._group_of(raw), raw["metadata"]
        if group is None:
            return
        self._bury(meta["uid"])
        old = self.of(group).get(meta["name"])
        if old is not None and old.uid == meta["uid"]:
            # It is gone, even if its last state cannot be understood.
            self._forget(group, meta["name"])
            last = self._parse(raw)
            self._removed(group, old if last is None else replace(old, value=last))

    def forget(self, group: Group, name: str) -> None:
        """An object was deleted by whoever asks; the watch will say so, too."""
        if (known := self.of(group).get(name)) is not None:
            self._bury(known.uid)
            self._forget(group, name)

    def keep(self, uids: set[str], namespace: str | None, version: str) -> None:
        """A complete list: only these objects existed at `version` in the namespace (None: in all namespaces)."""
        gone = [
            (group, name, cached)
            for group, objects in self._groups.items()
            if namespace in (None, group[0])
            for name, cached in objects.items()
            if cached.uid not in uids and cached.version <= int(version)
        ]
        for group, name, cached in gone:
            self._bury(cached.uid)
            self._removed(group, cached)
            self._forget(group, name)

    def _group_of(self, raw: Raw) -> Group | None:
        meta = raw["metadata"]
        value = meta.get("labels", {}).get(self._label)
        return (meta["namespace"], value) if value else None

    def _bury(self, uid: str) -> None:
        self._dead[uid] = None
        if len(self._dead) > TOMBSTONES:
            del self._dead[next(iter(self._dead))]

    def _forget(self, group: Group, name: str) -> None:
        objects = self._groups[group]
        del objects[name]
        if not objects:
            del self._groups[group]
        self._changed(group)
