"""Where a job stands in its LocalQueue, as Kueue's visibility API tells it."""

import logging
from typing import Final

from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.objects import ApiError, Object, Resource

logger = logging.getLogger(__name__)

# Further back a position says little, and would be another write of the status whenever a job starts.
FIRST: Final = 10
SECONDS: Final = 60.0
# The API is optional, and needs a permission of its own.
ABSENT_SECONDS: Final = 600.0
_QUEUES: Final = Resource("visibility.kueue.x-k8s.io/v1beta2", "localqueues")


class QueuePositions:
    """The first Workloads of each LocalQueue, read at most once in SECONDS however many jobs wait in it."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._read: dict[tuple[str, str], tuple[float, dict[str, int]]] = {}

    async def of(self, namespace: str, queue: str, workload: str, now: float) -> int | None:
        """The position, from 1 on; None further back, and when it cannot be read. Never raises."""
        key = (namespace, queue)
        until, known = self._read.get(key, (0.0, {}))
        if now >= until:
            # Before the request, so that the other jobs of the queue do not ask as well.
            self._read[key] = (now + SECONDS, known)
            try:
                answer = await self._kube.get(_QUEUES, namespace, queue, "pendingworkloads", limit=str(FIRST))
                self._read[key] = (now + SECONDS, _positions(answer))
            except ApiError as error:
                logger.debug("The positions in LocalQueue %s cannot be read: %s", queue, error.message)
                self._read[key] = (now + ABSENT_SECONDS, {})
        return self._read[key][1].get(workload)


def _positions(answer: Object) -> dict[str, int]:
    items = answer.get("items") or ()
    return {each["metadata"]["name"]: each.get("positionInLocalQueue", 0) + 1 for each in items}
