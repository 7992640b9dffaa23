"""The nodes of Ray's cluster that hold engines: a job's rollout pods, or the one machine of `dapo run`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray

from dapo_trainer.verl_config.placement import NODE_RESOURCE, POD_LABEL

_HEAD: Final = "node:__internal_head__"


@dataclass(frozen=True)
class EngineNode:
    """`resource` is Ray's resource that only this node has; `slots` are engine shards that fit."""

    id: str
    pod: str
    resource: str
    slots: int


def pods() -> Mapping[str, EngineNode]:
    """The rollout pods that are part of the cluster, by Ray's node id."""
    found = (_node(entry, int(entry["Resources"].get(NODE_RESOURCE["rollout"], 0))) for entry in _alive())
    return {node.id: node for node in found if node.slots}


def this_machine(slots: int) -> Mapping[str, EngineNode]:
    """The only node of a cluster that was started for this run, with the engines' share of its slots."""
    return {node.id: node for node in (_node(entry, slots) for entry in _alive())}


def room(nodes: Mapping[str, EngineNode], slots_per_engine: int) -> dict[str, int]:
    """How many engines fit on each node."""
    return {id: node.slots // slots_per_engine for id, node in nodes.items()}


def _alive() -> list[dict[str, Any]]:
    return [entry for entry in ray.nodes() if entry["Alive"]]


def _node(entry: dict[str, Any], slots: int) -> EngineNode:
    resource = next(name for name in entry["Resources"] if name.startswith("node:") and name != _HEAD)
    labels = entry.get("Labels") or {}
    return EngineNode(entry["NodeID"], labels.get(POD_LABEL, "this machine"), resource, slots)
