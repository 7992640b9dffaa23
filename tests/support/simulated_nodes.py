"""The nodes of a simulated cluster: they are cordoned, get lost, come back, and are replaced."""

import random
from typing import Any

from dapo_operator.kube.objects import timestamp
from dapo_operator.node_cache import NodeCache

COUNT = 12
# Nothing ever happens to this one.
STEADY = "steady"
# How long the control plane waits for a kubelet before it gives a node up.
GIVEN_UP_SECONDS = 50
SPOT = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}


class SimulatedNodes:
    """`step()` lets a second pass. Pods are placed on nodes that are up and take pods."""

    def __init__(self, seed: int, now: float) -> None:
        self.random = random.Random(seed)
        self.now = now
        self._made = 0
        self._nodes: dict[str, dict[str, Any]] = {}
        # By name: when the node went down, and when it is back (or is deleted).
        self._down: dict[str, tuple[float, float]] = {}
        for _ in range(COUNT):
            self._add()
        self._write(STEADY, ready="True")

    def place(self) -> str:
        """The node of a pod; the last one if none takes pods."""
        names = [name for name in self._nodes if name != STEADY]
        takes = [name for name in names if name not in self._down and not self.leaves(name)]
        return self.random.choice(takes or names)

    def leaves(self, name: str) -> bool:
        """Whether the node takes no pods, and those on it are to move."""
        spec = self._nodes[name]["spec"] if name in self._nodes else {}
        return bool(spec.get("unschedulable") or spec.get("taints"))

    def is_down(self, name: str) -> bool:
        """Whether no kubelet ends, or reports about, the pods of the node."""
        return name not in self._nodes or (name in self._down and self._down[name][0] <= self.now)

    def step(self, faults: bool) -> None:
        """A second."""
        self.now += 1
        if faults and self.random.random() < 0.01:
            self._happen(self.random.choice([name for name in self._nodes if name != STEADY]))
        for name, (since, until) in list(self._down.items()):
            if self.now == since + GIVEN_UP_SECONDS:
                self._write(name, ready="Unknown")
            if self.now >= until:
                self._return(name)

    @property
    def any_down(self) -> bool:
        """Whether a node is down, and will be back or deleted."""
        return bool(self._down)

    def heal(self) -> None:
        """Cordoned nodes are taken back until a few others take pods, and no further one goes down."""
        self._down = {name: (since, until) for name, (since, until) in self._down.items() if since <= self.now}
        leaving = [name for name in self._nodes if self.leaves(name) and name not in self._down]
        for name in leaving[: max(0, len(leaving) - COUNT // 2)]:
            self._write(name, ready="True")

    def _happen(self, name: str) -> None:
        match self.random.randrange(6):
            case 0 | 1 if name not in self._down:
                self._write(name, ready="True", unschedulable=not self.leaves(name))
            case 2 if name not in self._down:
                self._write(name, ready="True", taints=[SPOT])
                self._down[name] = (self.now + 30, self.now + 600)
            case 3 if name not in self._down:
                # Shorter than GIVEN_UP_SECONDS: a kubelet that is restarted.
                self._down[name] = (self.now, self.now + self.random.choice((20, 70, 400)))

    def _return(self, name: str) -> None:
        del self._down[name]
        if self.leaves(name) or self.random.random() < 0.3:
            del self._nodes[name]
            self._add()
        else:
            self._write(name, ready="True")

    def _add(self) -> None:
        self._made += 1
        self._nodes[f"node-{self._made}"] = {}
        self._write(f"node-{self._made}", ready="True")

    def _write(self, name: str, ready: str, **spec: Any) -> None:
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": timestamp(self.now)}
        meta = {"name": name, "uid": f"uid-{name}"}
        self._nodes[name] = {"metadata": meta, "spec": spec, "status": {"conditions": [condition]}}

    def tell(self, cache: NodeCache) -> None:
        """What a watch would have told by now."""
        for raw in self._nodes.values():
            cache.put(raw)
        cache.keep({raw["metadata"]["uid"] for raw in self._nodes.values()}, None, "0")
