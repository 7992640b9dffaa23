"""A DAPOJob on a real API server, as a test drives it."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from builders import MINIMAL
from servers.kubernetes_api import Object, Refused
from servers.kubernetes_objects import Kubernetes
from servers.kubernetes_pods import pods_of

from dapo_core.jobspec.presets import merged

SMALL = {"cpu": "1", "memory": "1Gi", "shm": "1Gi"}
# What every job of these tests has: little of everything, and seconds instead of minutes.
BASE: dict[str, Any] = {
    "topology": {
        "head": {"resources": SMALL},
        "trainer": {"resources": SMALL},
        "rollout": {"resources": SMALL},
    },
    "runPolicy": {"gracePeriodSeconds": 2, "backoffSeconds": 1},
}
BY_HAND = {"metadata": {"annotations": {"tests.dapo.io/start": "by-hand"}}}
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class JobOn:
    """One DAPOJob."""

    kubernetes: Kubernetes
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Its URL path."""
        return f"/apis/dapo.io/v1alpha1/namespaces/{self.namespace}/dapojobs/{self.name}"

    def submit(self, **groups: Any) -> "JobOn":
        """Create it. Raises Refused."""
        self.kubernetes.api.create(self.path.rpartition("/")[0], job_object(self.name, **groups))
        return self

    def get(self) -> Object:
        """It, as the API server has it."""
        found: Object = self.kubernetes.api.get(self.path)
        return found

    def status(self) -> Object:
        """Its status, empty at first."""
        found: Object = self.get().get("status", {})
        return found

    def edit(self, **groups: Any) -> None:
        """Merge into its spec."""
        self.kubernetes.api.patch(self.path, {"spec": groups})

    def delete(self) -> None:
        """Ask for its end."""
        self.kubernetes.api.delete(self.path)

    def gone(self) -> bool:
        """Whether it is."""
        try:
            self.get()
        except Refused as refused:
            return refused.code == 404
        return False

    def pods(self, **labels: str) -> list[Object]:
        """Its pods."""
        return pods_of(self.kubernetes.api, self.namespace, job=self.name, **labels)

    def pod(self, role: str, attempt: int = 1, index: int = 0) -> Object:
        """One pod."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}-{role}-{attempt}-{index}"
        found: Object = self.kubernetes.api.get(path)
        return found

    def condition(self, kind: str) -> Object:
        """A condition, empty when it was never set."""
        return next((each for each in self.status().get("conditions", ()) if each["type"] == kind), {})

    def events(self) -> list[str]:
        """Reasons of its Events, oldest first; those of a series as often as it counts."""
        events = self.kubernetes.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        # Its PodDisruptionBudget has the same name, and a story of its own.
        mine = ("DAPOJob", self.name)
        own = [event for event in events if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == mine]
        return [
            event["reason"]
            for event in sorted(own, key=lambda event: event["metadata"]["name"])
            for _ in range((event.get("series") or {}).get("count", 1))
        ]

    def wait_phase(self, phase: str, seconds: float = PATIENCE_SECONDS) -> "JobOn":
        """Until its STATUS is this."""
        return self.wait(lambda: self.status().get("phase") == phase, f"{self.name} is {phase}", seconds)

    def wait_reason(self, kind: str, reason: str, seconds: float = PATIENCE_SECONDS) -> Object:
        """Until a condition has this reason; the condition."""
        self.wait(lambda: self.condition(kind).get("reason") == reason, f"{kind} of {self.name} is {reason}", seconds)
        return self.condition(kind)

    def wait_attempt(self, number: int, seconds: float = PATIENCE_SECONDS) -> "JobOn":
        """Until this attempt trains."""
        return self.wait(
            lambda: (status := self.status()).get("phase") == "Training" and status["attempts"][-1]["number"] == number,
            f"attempt {number} of {self.name} trains",
            seconds,
        )

    def wait(self, holds: Any, what: str, seconds: float = PATIENCE_SECONDS) -> "JobOn":
        """Until something holds; says how the job is when it does not come about."""
        try:
            self.kubernetes.wait_until(holds, what, seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.status() if not self.gone() else 'the job is gone'}") from None
        return self

    def wait_gone(self) -> None:
        """Until nothing of it is left."""
        self.wait(self.gone, f"{self.name} is gone")
        self.wait(lambda: not self.left_behind(), f"nothing of {self.name} is left")

    def left_behind(self) -> list[str]:
        """Objects that carry its label."""
        kinds = (
            "/api/v1/namespaces/{}/pods",
            "/api/v1/namespaces/{}/services",
            "/api/v1/namespaces/{}/configmaps",
            "/api/v1/namespaces/{}/secrets",
            "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
            "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
        )
        selector = f"dapo.io/job={self.name}"
        found = [self.kubernetes.api.items(kind.format(self.namespace), labelSelector=selector) for kind in kinds]
        return [item["metadata"]["name"] for items in found for item in items]


def job_object(name: str, **groups: Any) -> Object:
    """A DAPOJob with small pods."""
    raw: Object = deepcopy(merged(merged(MINIMAL, {"spec": BASE}), {"spec": groups}))
    raw["metadata"]["name"] = name
    return raw


@contextmanager
def job_on(kubernetes: Kubernetes, namespace: str, name: str) -> Iterator[JobOn]:
    """A job that is asked to go afterwards, but not waited for."""
    job = JobOn(kubernetes, namespace, name)
    try:
        yield job
    finally:
        if not job.gone():
            job.delete()
