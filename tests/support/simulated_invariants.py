"""What must hold at every moment of a simulated cluster, whatever goes wrong."""

import json

from fake_kube import FakeKube, Object
from simulated_operator import NAMESPACE
from simulated_pods import SimulatedPods, is_head, owner_of

from dapo_core.naming import LABEL_ATTEMPT, LABEL_ROLE
from dapo_operator.jobs.builders.support import JOB_FILE
from dapo_operator.jobs.job_objects import config_name
from dapo_operator.jobs.planner.rollout_lives import UNSEEN_SECONDS


class Invariants:
    """`check()` raises when something is as it must never be. `lives` are the rollout pods that it has seen."""

    def __init__(self, kube: FakeKube, pods: SimulatedPods) -> None:
        self._kube, self._pods = kube, pods
        # By owner and name: the UID of a rollout pod, and since when it is there.
        self.lives: dict[tuple[str, str], tuple[str, float]] = {}
        # By owner and attempt: those that have had a head, which tells rollouts apart by their names.
        self._led: set[tuple[str, str]] = set()
        # By UID of a pod: its image and the ConfigMap of its job file.
        self._read: dict[str, tuple[str, str]] = {}

    def check(self, frozen: dict[str, tuple[Object, int]]) -> None:
        """`frozen`: by UID of a job whose status cannot be read, the one before, and how often it had been written."""
        jobs = {raw["metadata"]["uid"]: raw for raw in self._kube.of_kind("DAPOJob")}
        pods = self._pods.own()
        self._check_frozen(jobs, frozen)
        self._check_pinned(jobs, pods)
        self._check_rollouts(jobs, pods)
        attempts: dict[str, set[int]] = {}
        heads = {owner_of(pod): int(pod["metadata"]["labels"][LABEL_ATTEMPT]) for pod in pods if is_head(pod)}
        for pod in pods:
            if (number := self._pods.attempt_of(pod, heads.get(owner_of(pod)))) is not None:
                attempts.setdefault(owner_of(pod), set()).add(number)
        for uid, numbers in attempts.items():
            assert len(numbers) == 1, f"two attempts' pods at once: {numbers} of {uid}"
            if (job := jobs.get(uid)) is not None:
                recorded = {attempt["number"] for attempt in job.get("status", {}).get("attempts", ())}
                assert numbers <= recorded, f"attempt {numbers} of {job['metadata']['name']} is not on record"

    def _check_rollouts(self, jobs: dict[str, Object], pods: list[Object]) -> None:
        """The end of a rollout is no end of its attempt, and no name comes back."""
        for job in jobs.values():
            roles = {attempt.get("role") for attempt in job.get("status", {}).get("attempts", ())}
            assert "rollout" not in roles, f"a rollout ended an attempt of {job['metadata']['name']}"
        for pod in pods:
            meta = pod["metadata"]
            if meta["labels"][LABEL_ROLE] == "rollout":
                key = (meta["ownerReferences"][0]["uid"], meta["name"])
                uid, since = self.lives.setdefault(key, (meta["uid"], self._kube.time))
                if uid != meta["uid"]:
                    # A life that ended before the operator knew of it may be asked for again.
                    led = (owner_of(pod), meta["labels"][LABEL_ATTEMPT]) in self._led
                    known = self._kube.time - since > UNSEEN_SECONDS
                    assert not led or not known, f"the name {meta['name']} came back"
                    self.lives[key] = (meta["uid"], self._kube.time)
        self._led.update((owner_of(pod), pod["metadata"]["labels"][LABEL_ATTEMPT]) for pod in pods if is_head(pod))

    def _check_pinned(self, jobs: dict[str, Object], pods: list[Object]) -> None:
        """An upgrade of the platform does not mix images or job files in one attempt."""
        for pod in pods:
            job = jobs.get(pod["metadata"]["ownerReferences"][0]["uid"])
            pinned = (job or {}).get("status", {}).get("pinned")
            if job is not None and pinned is not None:
                image, name = self._what_it_reads(pod)
                known = {pinned["image"], *(pinned.get("images") or {}).values()}
                assert image in known, f"{pod['metadata']['name']} has image {image}, not one of {known}"
                assert ("configmaps", NAMESPACE, name) in self._kube.objects, f"{name} does not exist"
                if not name.endswith(pinned["revision"]):
                    # A trainer may have stayed from before the job was scaled.
                    assert self._pods.has_joined(pod), f"{pod['metadata']['name']} reads {name}"
                    newest = self._read_by_trainers(config_name(job["metadata"]["name"], pinned["revision"]))
                    assert newest in (None, self._read_by_trainers(name)), f"{pod['metadata']['name']} reads {name}"

    def _what_it_reads(self, pod: Object) -> tuple[str, str]:
        uid = pod["metadata"]["uid"]
        if uid not in self._read:
            [image] = {container["image"] for container in pod["spec"]["containers"]}
            [name] = {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
            self._read[uid] = (image, name)
        return self._read[uid]

    def _read_by_trainers(self, name: str) -> Object | None:
        """A job file without its rollouts; None when it has not been written yet."""
        raw = self._kube.objects.get(("configmaps", NAMESPACE, name))
        if raw is None:
            return None
        spec: Object = json.loads(raw["data"][JOB_FILE])["spec"]
        spec["topology"].pop("rollout")
        return spec

    def _check_frozen(self, jobs: dict[str, Object], frozen: dict[str, tuple[Object, int]]) -> None:
        """A job whose status cannot be read keeps its pods and its status, unless it is deleted."""
        deleted, self._kube.deletions = self._kube.deletions, []
        for uid, (_, writes) in frozen.items():
            if (job := jobs.get(uid)) is None or "deletionTimestamp" in job["metadata"]:
                continue
            assert self._kube.writes.get(uid, 0) == writes, f"the status of {job['metadata']['name']} was replaced"
            for raw in deleted:
                owners = {owner["uid"] for owner in raw["metadata"].get("ownerReferences", ())}
                assert uid not in owners, f"{raw['metadata']['name']} of a frozen job was deleted"
