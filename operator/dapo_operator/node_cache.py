"""What the watch of the nodes knows: the few that are lost or leaving, and what the others offer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from dapo_operator.jobs.node_state import DELETED, HEALTHY, Node, node_of, offered_by
from dapo_operator.kube.cache import TOMBSTONES
from dapo_operator.kube.objects import Object

# As Kubernetes' own node controller: when more than this share of the nodes is silent, and not only one or two, it is
# the control plane that does not hear them.
_DISRUPTED_SHARE: Final = 0.55
_FEW: Final = 2


class NodeCache:
    """Small values of all nodes. `changed` is called with the name of a node that got lost, leaves, or is back."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._nodes: dict[str, tuple[str, Node]] = {}  # by name: UID and state
        self._deleted: dict[str, None] = {}
        self._silent: set[str] = set()
        # By resource: what each node that takes pods offers of it.
        self._offered: dict[str, dict[str, int]] = {}
        self._changed = changed

    def offering(self, resource: str) -> Mapping[str, int] | None:
        """The nodes that take pods and have some of an extended resource, such as nvidia.com/gpu, and how much; with
        "" all that take pods, with 1. None when nodes are not watched."""
        return MappingProxyType(self._offered.get(resource, {})) if self._nodes else None

    def of(self, names: Iterable[str | None]) -> dict[str, Node]:
        """The nodes of these names of which there is something to say."""
        found = {name: self._state(name) for name in names if name is not None}
        return {name: node for name, node in found.items() if node is not HEALTHY}

    def _state(self, name: str) -> Node:
        if name in self._nodes:
            _, node = self._nodes[name]
            return replace(node, silent_since=None) if node.silent_since and self._disrupted else node
        return DELETED if name in self._deleted else HEALTHY

    @property
    def _disrupted(self) -> bool:
        silent, nodes = len(self._silent), len(self._nodes)
        return silent == nodes or (silent > _FEW and silent > _DISRUPTED_SHARE * nodes)

    def put(self, raw: Object) -> None:
        """A node exists, or has changed."""
        name, node = raw["metadata"]["name"], node_of(raw)
        _, before = self._nodes.get(name, ("", HEALTHY))
        self._nodes[name] = (raw["metadata"]["uid"], node)
        self._offer(name, offered_by(raw) if node is HEALTHY else {})
        self._deleted.pop(name, None)
        (self._silent.add if node.silent_since is not None else self._silent.discard)(name)
        if node != before:
            self._changed(name)

    def drop(self, raw: Object) -> None:
        """A node was deleted."""
        self._forget(raw["metadata"]["name"])

    def keep(self, uids: set[str], namespace: str | None, version: str) -> None:
        """A complete list: nodes that are not among these UIDs were deleted."""
        for name in [name for name, (uid, _) in self._nodes.items() if uid not in uids]:
            self._forget(name)

    def _offer(self, name: str, offered: Mapping[str, int]) -> None:
        for resource in [*self._offered, *offered]:
            nodes = self._offered.setdefault(resource, {})
            nodes.pop(name, None)
            if resource in offered:
                nodes[name] = offered[resource]

    def _forget(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._offer(name, {})
        self._silent.discard(name)
        self._deleted[name] = None
        if len(self._deleted) > TOMBSTONES:
            del self._deleted[next(iter(self._deleted))]
        self._changed(name)
