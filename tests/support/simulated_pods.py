"""The pods of a simulated cluster: kubelets start and end them; they fail, hang, are drained and lose their nodes."""

import json
import random

from fake_kube import FakeKube, Object
from simulated_nodes import STEADY, SimulatedNodes
from simulated_operator import NAMESPACE

from dapo_core.jobspec import parse_job
from dapo_core.naming import LABEL_ATTEMPT, LABEL_JOB, LABEL_ROLE, child_name
from dapo_operator.jobs.builders.support import JOB_FILE
from dapo_operator.kube.objects import PODS, timestamp


class SimulatedPods:
    """`step()` lets a second pass. `only_rollouts`: heads and trainers are spared. `stayed` counts the trainers that
    joined another attempt, `hangs` the ranks that hung."""

    def __init__(self, kube: FakeKube, nodes: SimulatedNodes, dice: random.Random, only_rollouts: bool) -> None:
        self._kube, self._nodes, self._random, self._only_rollouts = kube, nodes, dice, only_rollouts
        # By UID of a trainer: the attempt whose head it has joined, and the one whose head it waits for.
        self._joined: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        # By UID of a head: all pods that its driver waits for have joined.
        self._gathered: set[str] = set()
        # By UID: it waits for the next attempt where it ran.
        self._in_place: dict[str, bool] = {}
        self.stayed = self.hangs = 0

    def step(self, faults: bool) -> None:
        """Kubelets start pods, end those that are deleted, and report; with `faults` pods also fail."""
        for pod in self.own():
            meta, phase = pod["metadata"], pod.get("status", {}).get("phase", "Pending")
            if (node := pod["spec"].get("nodeName")) is not None and self._nodes.is_down(node):
                continue
            if "deletionTimestamp" in meta:
                if meta["name"] not in self._kube.stuck and self._random.random() < 0.3:
                    self._kube.remove((PODS.plural, NAMESPACE, meta["name"]))
            elif phase not in ("Running", "Succeeded", "Failed") and self._random.random() < 0.3:
                node = STEADY if self.spares(pod) else self._nodes.place()
                status = self._started(pod)
                if pod["metadata"]["labels"][LABEL_ROLE] == "rollout":
                    status["conditions"] = []
                self._kube.update(pod, spec={**pod["spec"], "nodeName": node}, status=status)
            elif phase == "Running" and "conditions" not in pod["status"]:
                self._kube.update(pod, status=self._started(pod))
            elif phase == "Running" and self._may_serve(pod):
                self._kube.update(pod, status=self._started(pod))
            elif phase == "Running" and self._is_in_place(pod) and self._random.random() < 0.5:
                self._stay(pod)
            elif phase == "Running" and faults and self._random.random() < (0.005 if self._only_rollouts else 0.0005):
                if not self.spares(pod):
                    self._hurt(pod)

    def _may_serve(self, pod: Object) -> bool:
        """Whether a rollout that runs gets its engine: the driver starts them once as many have joined as its job file
        asks for."""
        labels = pod["metadata"]["labels"]
        if labels[LABEL_ROLE] != "rollout" or pod["status"]["conditions"]:
            return False
        head = self._head(pod, int(labels[LABEL_ATTEMPT]))
        if head is None or head.get("status", {}).get("phase") != "Running":
            return False
        if (uid := head["metadata"]["uid"]) not in self._gathered:
            joined = sum(_is_beside(other, pod) for other in self.own())
            if joined < self._awaited(head):
                return False
            self._gathered.add(uid)
        return True

    def _awaited(self, head: Object) -> int:
        """The rollouts that a driver waits for."""
        [name] = {volume["configMap"]["name"] for volume in head["spec"]["volumes"] if "configMap" in volume}
        file = self._kube.objects[("configmaps", NAMESPACE, name)]["data"][JOB_FILE]
        return max(1, parse_job(json.loads(file)).spec.topology.layout.required_pods["rollout"])

    def _is_in_place(self, pod: Object) -> bool:
        uid = pod["metadata"]["uid"]
        if uid not in self._in_place:
            environment = pod["spec"]["containers"][0]["env"]
            self._in_place[uid] = any(each["name"] == "DAPO_RESTART" for each in environment)
        return self._in_place[uid]

    def _stay(self, pod: Object) -> None:
        """A trainer whose head has ended ends its processes and waits for the next one, which it then joins. Some are
        of an image that does not know that, and end."""
        uid = pod["metadata"]["uid"]
        if (number := self._waiting.get(uid)) is not None:
            if self._head_runs(pod, number):
                self.stayed += 1
                self._joined[uid] = self._waiting.pop(uid)
                self._kube.update(pod, status=self._started(pod))
            return
        number = self._joined.get(uid, int(pod["metadata"]["labels"][LABEL_ATTEMPT]))
        if self._head_runs(pod, number):
            self._joined[uid] = number
        elif uid in self._joined and self._random.random() < 0.2:
            self._kube.update(pod, status=_ended(30, "Error"))
        elif uid in self._joined and any(each["type"] == "Ready" for each in pod["status"]["conditions"]):
            self._waiting[uid] = number + 1
            self._kube.update(pod, status={**pod["status"], "conditions": []})

    def _head(self, pod: Object, number: int) -> Object | None:
        name = child_name(pod["metadata"]["labels"][LABEL_JOB], "head", number, 0)
        return self._kube.objects.get((PODS.plural, NAMESPACE, name))

    def _head_runs(self, pod: Object, number: int) -> bool:
        head = self._head(pod, number)
        return head is not None and head.get("status", {}).get("phase") == "Running"

    def end_a_driver(self) -> None:
        """It has lost a rank."""
        heads = [pod for pod in self.own() if is_head(pod) and pod.get("status", {}).get("phase") == "Running"]
        self._kube.update(self._random.choice(heads), status=_ended(30, "Error")) if heads else None

    def spares(self, pod: Object) -> bool:
        """Whether nothing is to happen to a pod."""
        return self._only_rollouts and pod["metadata"]["labels"][LABEL_ROLE] != "rollout"

    def _started(self, pod: Object) -> Object:
        """It runs: an image of a tag that is moved all the time."""
        status, image = _running(), pod["spec"]["containers"][0]["image"]
        digest = image.partition("@")[2] or f"sha256:{self._random.randrange(4)}"
        status["containerStatuses"][0]["imageID"] = f"{image.partition('@')[0]}@{digest}"
        return status

    def _hurt(self, pod: Object) -> None:
        match self._random.randrange(6):
            case 0:
                self._kube.update(pod, status=_ended(137, "OOMKilled"))
            case 1:
                self._kube.update(pod, status=_ended(30, "Error"))
            case 2:
                status = _running() | {"conditions": [_condition("DisruptionTarget", "EvictionByEvictionAPI")]}
                self._kube.update(pod, status=status)
                self._kube.mark_deleted(self._kube.objects[(PODS.plural, NAMESPACE, pod["metadata"]["name"])])
            case 3:
                # Its node is lost: only a forced deletion removes it.
                self._kube.stuck.add(pod["metadata"]["name"])
                self._kube.mark_deleted(pod)
            case 4 if pod["metadata"]["labels"][LABEL_ROLE] != "rollout":
                # A rank hangs, and the driver does not notice. What a rollout that hangs means, the driver decides.
                self._kube.update(pod, status=_silent(self._kube.time))
                self.hangs += 1
            case _:
                self._kube.update(pod, status=_ended(1, "Error"))

    def hung(self, job: str) -> list[str]:
        """The pods of a job whose ranks hang."""
        return [
            pod["metadata"]["name"]
            for pod in self.own()
            if pod["metadata"]["labels"][LABEL_JOB] == job
            and any(each["type"] == "ContainersReady" for each in pod.get("status", {}).get("conditions", ()))
        ]

    def own(self) -> list[Object]:
        """All pods but those of somebody else."""
        return [pod for pod in self._kube.of_kind("Pod") if "ownerReferences" in pod["metadata"]]

    def has_joined(self, pod: Object) -> bool:
        """Whether it is a trainer that may stay for another attempt."""
        return pod["metadata"]["uid"] in self._joined

    def attempt_of(self, pod: Object, head: int | None) -> int | None:
        """The attempt of a pod: of a trainer that stayed the last it joined, until the head it waits for exists. None
        while there is no head: it has left one attempt, and the head of the next may not be created yet, or no more."""
        uid, number = pod["metadata"]["uid"], int(pod["metadata"]["labels"][LABEL_ATTEMPT])
        if (waits := self._waiting.get(uid)) is not None:
            return None if head is None else waits if waits == head else waits - 1
        return self._joined.get(uid, number)


def owner_of(pod: Object) -> str:
    """The UID of its job."""
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _is_beside(other: Object, rollout: Object) -> bool:
    """Whether a pod is a rollout of the same attempt that runs."""
    labels, expected = other["metadata"]["labels"], rollout["metadata"]["labels"]
    if any(labels[each] != expected[each] for each in (LABEL_JOB, LABEL_ATTEMPT, LABEL_ROLE)):
        return False
    return other.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in other["metadata"]


def is_head(pod: Object) -> bool:
    """Whether it has the driver."""
    return bool(pod["metadata"]["labels"][LABEL_ROLE] == "head")


def _condition(kind: str, reason: str = "") -> Object:
    return {"type": kind, "status": "True", "reason": reason}


def _running() -> Object:
    container = {"name": "dapo", "ready": True, "state": {"running": {}}}
    return {"phase": "Running", "conditions": [_condition("Ready")], "containerStatuses": [container]}


def _silent(now: float) -> Object:
    """It runs on, and its heartbeats have stopped."""
    status = _running()
    status["containerStatuses"][0]["ready"] = False
    unready = {"status": "False", "lastTransitionTime": timestamp(now)}
    return status | {"conditions": [{"type": "Ready", **unready}, {"type": "ContainersReady", **unready}]}


def _ended(code: int, reason: str) -> Object:
    container = {"name": "dapo", "ready": False, "state": {"terminated": {"exitCode": code, "reason": reason}}}
    return {"phase": "Failed", "conditions": [], "containerStatuses": [container]}
