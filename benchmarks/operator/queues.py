"""Kueue's real controller beside the benchmark, with a queue that has room for every job in each namespace."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from servers.kubernetes import Cluster
from servers.kueue import GROUP, KueueController, cluster_queue, flavor, local_queue
from subjects import QUEUE

_ROOM: Final = {"cpu": "10M", "memory": "10Pi", "nvidia.com/gpu": "1M"}


class Queues:
    """One ClusterQueue, and its LocalQueue in each namespace."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self.controller = KueueController(cluster, folder / "kueue")

    def open(self, spaces: Iterable[str]) -> None:
        """Install Kueue, start it, and make the queues."""
        api = self._cluster.api
        self.controller.install()
        self.controller.start()
        api.create(f"{GROUP}/resourceflavors", flavor("fake", {"type": "kwok"}, []))
        queue = cluster_queue(QUEUE, QUEUE, "fake", gpus=0)
        for quota in queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
            quota["nominalQuota"] = _ROOM[quota["name"]]
        api.create(f"{GROUP}/clusterqueues", queue)
        self.open_in(spaces)

    def open_in(self, spaces: Iterable[str]) -> None:
        """A LocalQueue in each of these namespaces."""
        for space in spaces:
            self._cluster.api.create(f"{GROUP}/namespaces/{space}/localqueues", local_queue(QUEUE))
