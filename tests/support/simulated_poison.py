"""Objects that nobody foresaw: what a tenant, another controller or a bug may leave behind, at no cost to others."""

import random
from collections import Counter
from typing import Any, Final

from fake_kube import FakeKube, Object

from dapo_core.naming import LABEL_JOB
from dapo_operator.children import JobKey
from dapo_operator.kube.objects import PODS
from dapo_operator.reconciler import Reconciler

# Jobs of this name run into a bug of the operator whenever they are looked at.
BUGGY: Final = "buggy"
# Reconciliations of one job within a minute: its pods change, people edit it, and it fails and backs off.
TURNS_A_MINUTE: Final = 120
# What no parser of a pod's state expects.
_STATES: Final[list[Any]] = [
    {"conditions": [{}]},
    {"conditions": [{"type": "Ready"}], "containerStatuses": [{"name": "dapo", "state": {"terminated": 5}}]},
    {"phase": 7, "containerStatuses": [{"name": ["dapo"]}]},
    {"phase": "Failed", "message": None, "initContainerStatuses": [{"state": {"terminated": {"exitCode": "x"}}}]},
    {"containerStatuses": [{"name": "dapo", "state": {"terminated": {"exitCode": 1, "message": "[" * 4000}}}]},
]


class BuggyReconciler(Reconciler):
    """Fails whenever it plans."""

    async def _reconcile(self) -> float:
        raise RuntimeError("a bug that only this job runs into")


def reconciler_class(key: JobKey) -> type[Reconciler]:
    """What works on a job of this name."""
    return BuggyReconciler if key[1].startswith(BUGGY) else Reconciler


def poison(kube: FakeKube, dice: random.Random) -> None:
    """Put a state into a pod that cannot be understood, or leave behind a pod that is nobody's."""
    pods = [pod for pod in kube.of_kind("Pod") if "ownerReferences" in pod["metadata"]]
    if not pods:
        return
    pod = dice.choice(pods)
    if dice.random() < 0.8:
        kube.update(pod, status=dice.choice(_STATES))
    else:
        _add_debug_copy(kube, pod, dice.randrange(10**6))


def _add_debug_copy(kube: FakeKube, pod: Object, number: int) -> None:
    """What `kubectl debug --copy-to` leaves: the label of the job, and none of the others."""
    meta = pod["metadata"]
    copy = {"name": f"debug-{number}", "namespace": meta["namespace"], "uid": f"debug-{number}"}
    labels = {LABEL_JOB: meta["labels"][LABEL_JOB]}
    kube.insert(
        PODS, {"kind": "Pod", "metadata": {**copy, "labels": labels}, "spec": {}, "status": {"phase": "Running"}}
    )


class Turns:
    """Counts the reconciliations of each job within a minute."""

    def __init__(self) -> None:
        self._minute = 0
        self._counts = Counter[JobKey]()

    def take(self, key: JobKey, now: float) -> None:
        """A job is reconciled. Fails when one takes more than its share of what all have."""
        if int(now) // 60 != self._minute:
            self._minute = int(now) // 60
            self._counts.clear()
        self._counts[key] += 1
        assert self._counts[key] <= TURNS_A_MINUTE, f"{key} is reconciled again and again"
