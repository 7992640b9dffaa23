"""All gang schedulers, by the name that `spec.runPolicy.gang.scheduler` has for them."""

from collections.abc import Mapping
from typing import Any, Final

from dapo_operator.jobs.builders.common import Site
from dapo_operator.jobs.gangs.contract import Gang, GangScheduler, PodFields, Reservation
from dapo_operator.jobs.gangs.kueue import Kueue
from dapo_operator.jobs.gangs.pod_groups import Coscheduling, InTree, Kai, Volcano


class Ungrouped:
    """No gang scheduler: the start timeout frees the pods of a gang that got only some of them scheduled."""

    name: Final = "none"
    resource: Final = None
    waits: Final = False

    def reserve(self, gang: Gang) -> None:
        return None

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields()

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        return None


_ALL: Final[tuple[GangScheduler, ...]] = (Ungrouped(), Kueue(), Volcano(), Coscheduling(), Kai(), InTree())
SCHEDULERS: Final[Mapping[str, GangScheduler]] = {scheduler.name: scheduler for scheduler in _ALL}
# Those that hold a gang back as a whole. Waiting in their queues costs nothing, so the start timeout of their gangs
# counts from the first pod that has a node.
QUEUEING: Final = tuple(scheduler.name for scheduler in _ALL if scheduler.resource is not None)
