"""A job, its status and its pods, moved from one plan to the next as the executor and a cluster would."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from builders import MINIMAL

from dapo_core.jobspec.presets import merged
from dapo_core.run.last_words import LastWords
from dapo_core.run.status import Condition, DAPOJobStatus, Progress
from dapo_operator.jobs.actions import (
    AddFinalizer,
    ApplySupport,
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteSupport,
    Event,
    Plan,
    Release,
    RemoveFinalizer,
    ReportOutcome,
    Reserve,
)
from dapo_operator.jobs.builders.support import support_objects
from dapo_operator.jobs.dapojob import FINALIZER, Job, job_of
from dapo_operator.jobs.gangs.gang_scheduler import Reservation
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.jobs.job_objects import DIGEST, Site
from dapo_operator.jobs.observed import Observed, Pod, Refusal, pod_of
from dapo_operator.jobs.planner import plan
from dapo_operator.jobs.revision import job_file_of
from dapo_operator.kube.objects import timestamp

START = 1_800_000_000.0
SITE = Site(image="trainer:1")
UID = "8f1c6a52-0000-4000-8000-000000000001"


def raw_job(name: str = "first", uid: str = UID, **groups: Any) -> dict[str, Any]:
    """The smallest DAPOJob with these groups of its spec over it, as the API server has it."""
    raw = merged(deepcopy(MINIMAL), {"spec": groups})
    meta = {
        "name": name,
        "namespace": "team",
        "uid": uid,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": timestamp(START),
    }
    return {**raw, "metadata": meta}


@dataclass
class Bench:
    """`step()` makes one plan and carries it out: pods appear pending, and deleted ones are gone at once unless
    `slow_deletion`."""

    raw: dict[str, Any] = field(default_factory=raw_job)
    now: float = START
    pods: dict[str, Pod] = field(default_factory=dict)
    status: DAPOJobStatus = field(default_factory=DAPOJobStatus)
    seen: Observed = field(default_factory=Observed)
    site: Site = SITE
    slow_deletion: bool = False
    grace: int = 30
    events: list[Event] = field(default_factory=list)
    writes: int = 0
    forced: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    tried: int = 0
    job_deleted: bool = False
    reservations: dict[str, Reservation] = field(default_factory=dict)
    reports: list[Any] = field(default_factory=list)
    _jobs: dict[Any, Job] = field(default_factory=dict)

    @property
    def job(self) -> Job:
        """The job as the operator reads it."""
        meta = self.raw["metadata"]
        groups = tuple(meta.get("finalizers", ())), tuple(meta.get("labels", {}).items())
        key = (meta["generation"], meta.get("deletionTimestamp"), *groups, meta["uid"])
        if key not in self._jobs:
            self._jobs[key] = job_of(self.raw, self.site)
        return self._jobs[key]

    def look(self) -> Plan:
        """A plan that is not carried out."""
        seen = replace(self.seen, pods=tuple(self.pods.values()), reservations=tuple(self.reservations.values()))
        return plan(self.job, self.status, seen, self.now, self.site)

    def step(self, seconds: float = 0.0) -> Plan:
        """Let time pass, make a plan and carry it out."""
        self.now += seconds
        made = self.look()
        self.writes += made.status != self.status
        self.status = made.status
        self.events += made.events
        for action in made.actions:
            self._carry_out(action)
        return made

    def settle(self, seconds: float = 0.0) -> "Bench":
        """Steps until a plan changes nothing. A plan that never does is a write loop."""
        self.now += seconds
        for _ in range(20):
            made = self.look()
            if made.status == self.status and not made.actions:
                return self
            self.step()
        raise AssertionError(f"no end of it: {self.look()}")

    def _carry_out(self, action: object) -> None:
        match action:
            case AddFinalizer():
                self.raw["metadata"]["finalizers"] = [FINALIZER]
            case RemoveFinalizer():
                self.raw["metadata"]["finalizers"] = []
            case CreatePod(body):
                raw = deepcopy(dict(body))
                raw["metadata"]["uid"] = f"uid-{raw['metadata']['name']}"
                pod = pod_of(raw, self.raw["metadata"]["uid"])
                assert pod is not None
                self.pods.setdefault(pod.name, pod)
            case ApplySupport(body):
                key = (body["kind"], body["metadata"]["name"])
                support = {**self.seen.support, key: body["metadata"]["annotations"][DIGEST]}
                self.seen = replace(self.seen, support=support)
            case DeleteSupport(kind, name):
                support = {key: digest for key, digest in self.seen.support.items() if key != (kind, name)}
                self.seen = replace(self.seen, support=support)
            case Reserve(scheduler, body):
                made = SCHEDULERS[scheduler].observe(body)
                assert made is not None
                self.reservations.setdefault(made.name, made)
            case ReportOutcome(_, body):
                self._report(body)
            case Release(_, name, _, report):
                if report is not None:
                    self._report(report.body)
                self.reservations.pop(name, None)
            case DeletePod(name, uid, grace):
                self._delete(name, uid, grace)
            case DeleteJob():
                self.job_deleted = True
            case _:
                self.tried += 1

    def _report(self, body: Any) -> None:
        [said] = body["status"]["conditions"]
        name = body["metadata"]["name"]
        self.reports.append((name, said["type"], said["reason"], said["message"]))
        self.reservations[name] = replace(self.reservations[name], knows_ready=True)

    def _delete(self, name: str, uid: str, grace: int | None) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return
        self.deleted.append(name)
        if grace == 0:
            self.forced.append(name)
        if pod.finalizers or (self.slow_deletion and grace != 0 and not pod.over):
            self.pods[name] = replace(pod, deleting=True, delete_by=self.now + (self.grace if grace is None else grace))
        else:
            del self.pods[name]
            if pod.exit_code is not None or pod.disruption is not None or pod.role == "rollout":
                self.seen = replace(self.seen, gone=(*self.seen.gone, replace(pod, deleting=True)))

    # What a cluster and people do.

    def change(self, pod: str, **fields: Any) -> "Bench":
        """Change what is observed of a pod."""
        self.pods[pod] = replace(self.pods[pod], **fields)
        return self

    def change_all(self, **fields: Any) -> "Bench":
        """Change what is seen of all pods."""
        for name in self.pods:
            self.change(name, **fields)
        return self

    def run_all(self) -> "Bench":
        """All pods run and are ready."""
        return self.change_all(phase="Running", scheduled=True, started=True, ready=True)

    def admit(self, name: str, **fields: Any) -> "Bench":
        """A gang scheduler has given an attempt its room; or whatever else it does about it."""
        self.reservations[name] = replace(self.reservations[name], **({"admitted": True} | fields))
        return self

    def training(self) -> "Bench":
        """From nothing to an attempt whose pods are all ready."""
        self.settle()
        self.run_all()
        return self.settle(1)

    def finish(self, pod: str, code: int | None, reason: str = "", message: str = "", **fields: Any) -> "Bench":
        """The container of a pod ends."""
        words = LastWords(reason, message) if reason or message else None
        phase = "Succeeded" if code == 0 else "Failed"
        return self.change(pod, phase=phase, ready=False, exit_code=code, words=words, **fields)

    def vanish(self, pod: str) -> "Bench":
        """A pod is gone without a word."""
        del self.pods[pod]
        return self

    def edit(self, **groups: Any) -> "Bench":
        """Somebody changes the spec."""
        self.raw = {**self.raw, "spec": merged(self.raw["spec"], groups)}
        self.raw["metadata"] = {**self.raw["metadata"], "generation": self.raw["metadata"]["generation"] + 1}
        return self

    def scale(self, **rollout: Any) -> "Bench":
        """`kubectl scale`, or an autoscaler; the operator has read the job file of the run again."""
        pinned, parsed = self.status.pinned, self.job.parsed
        assert pinned is not None and pinned.revision is not None and parsed is not None
        [raw] = [body for body in support_objects(parsed, UID, pinned.revision) if body["kind"] == "ConfigMap"]
        self.edit(topology={"rollout": rollout})
        found = job_file_of(raw, pinned.revision, self.job.spec.topology.rollout)
        assert found is not None
        job = self.job.keeping(*found)
        self._jobs = dict.fromkeys(self._jobs, job)
        return self

    def delete_job(self) -> "Bench":
        """Somebody deletes the job."""
        self.raw["metadata"] = {**self.raw["metadata"], "deletionTimestamp": timestamp(self.now)}
        return self

    def refuse(self, kind: Any, message: str = "no") -> "Bench":
        """The API server refuses a pod of the newest attempt."""
        number = self.status.attempts[-1].number if self.status.attempts else 1
        last = self.seen.refusal
        tries = last.tries + 1 if last is not None and last.attempt == number else 1
        refusal = Refusal(kind, "a pod", message, self.now, number, tries)
        self.seen = replace(self.seen, refusal=refusal)
        return self

    def seeing(self, **fields: Any) -> "Bench":
        """Something else is observed."""
        self.seen = replace(self.seen, **fields)
        return self

    def progress(self, step: int, **fields: Any) -> "Bench":
        """The metadata store has a new step."""
        number = self.status.attempts[-1].number if self.status.attempts else 0
        read: dict[str, Any] = {"store": "ok", "progress": Progress(step=step, total_steps=200), "reached": step}
        self.seen = replace(self.seen, recorded_attempt=number, **read, **fields)
        return self

    # What is asked of the outcome.

    def condition(self, kind: str) -> Condition:
        """A condition that has to be there."""
        return next(each for each in self.status.conditions if each.type == kind)

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        return any(each.type == kind and each.status == "True" for each in self.status.conditions)

    def says(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = self.condition(kind)
        return found.status, found.reason

    @property
    def attempts(self) -> list[tuple[int, str | None]]:
        """Number and reason of each attempt."""
        return [(attempt.number, attempt.reason) for attempt in self.status.attempts]

    @property
    def names(self) -> list[str]:
        """Pods that are there."""
        return sorted(self.pods)
