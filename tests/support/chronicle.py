"""What happened to a namespace's jobs and pods, in the order of etcd, and what must never have happened."""

import base64
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import urllib3
from servers.kubernetes import Cluster
from servers.kubernetes_api import KubernetesApi

JOBS = "/apis/dapo.io/v1alpha1/namespaces/{}/dapojobs"
PODS = "/api/v1/namespaces/{}/pods"
# Every kind of object that belongs to a job.
CHILDREN = [
    PODS,
    "/api/v1/namespaces/{}/services",
    "/api/v1/namespaces/{}/configmaps",
    "/api/v1/namespaces/{}/secrets",
    "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
]


@dataclass(frozen=True)
class Entry:
    """One event. `attempt` is a pod's own, or the newest that a job's status has on record."""

    version: int
    kind: str
    name: str
    job: str
    uid: str
    attempt: int
    event: str


@dataclass
class Chronicle:
    """Watches a namespace from `__enter__` on in etcd itself, so that no fault of the API server hides anything.

    The cluster has to store JSON (`--storage-media-type`).
    """

    cluster: Cluster
    namespace: str
    entries: list[Entry] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for prefix in (f"/registry/dapo.io/dapojobs/{self.namespace}/", f"/registry/pods/{self.namespace}/"):
            thread = threading.Thread(target=self._watch, args=(prefix,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def check(self) -> None:
        """Raise AssertionError with the whole story where an invariant was broken."""
        for broken in (*self._attempts_that_met(), *self._attempts_without_a_record(), *self._doubled()):
            story = "\n".join(str(entry) for entry in self.ordered())
            raise AssertionError(f"{broken}\n{story}")

    def ordered(self) -> list[Entry]:
        """All entries in etcd's order."""
        return sorted(self.entries, key=lambda entry: entry.version)

    def _attempts_that_met(self) -> list[str]:
        """Two attempts' pods of one job at once."""
        there: dict[str, dict[str, int]] = defaultdict(dict)
        met = []
        for entry in self.ordered():
            if entry.kind == "Pod":
                pods = there[entry.job]
                pods[entry.name] = entry.attempt
                if entry.event == "DELETED":
                    del pods[entry.name]
                if len(set(pods.values())) > 1:
                    met.append(f"pods of attempts {sorted(set(pods.values()))} of {entry.job} at {entry.version}")
        return met

    def _attempts_without_a_record(self) -> list[str]:
        """A pod whose attempt was not in the job's status when it was made."""
        recorded: dict[str, int] = {}
        found = []
        for entry in self.ordered():
            if entry.kind == "DAPOJob":
                recorded[entry.job] = entry.attempt
            elif entry.event == "ADDED" and entry.attempt > recorded.get(entry.job, 0):
                found.append(f"{entry.name} was made at {entry.version} before its attempt was on record")
        return found

    def _doubled(self) -> list[str]:
        """One child made twice."""
        uids = {(entry.name, entry.uid) for entry in self.entries if entry.kind == "Pod"}
        return [
            f"{name} was made {count} times" for name, count in Counter(name for name, _ in uids).items() if count > 1
        ]

    def _watch(self, prefix: str) -> None:
        # A stream that is silent for a second is asked for again, from where it was: so the end is noticed.
        pool = urllib3.PoolManager(timeout=urllib3.Timeout(connect=10, read=1), retries=False)
        revision = 1  # the namespace is new
        with pool:
            while not self._stop.is_set():
                try:
                    for event in _events(pool, self.cluster.etcd_url, prefix, revision):
                        self.entries.append(_entry(event))
                        revision = self.entries[-1].version + 1
                except urllib3.exceptions.ReadTimeoutError:
                    continue


def _events(pool: urllib3.PoolManager, etcd: str, prefix: str, revision: int) -> Iterator[Any]:
    """Events of all keys under a prefix from a revision on, by etcd's gateway for JSON."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    create = {"key": _encoded(prefix), "range_end": _encoded(end), "start_revision": revision, "prev_kv": True}
    asked = json.dumps({"create_request": create})
    answer = pool.request("POST", f"{etcd}/v3/watch", body=asked, preload_content=False)
    rest = b""
    for chunk in answer.stream(65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield from json.loads(line)["result"].get("events", [])


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _entry(event: Any) -> Entry:
    gone = event.get("type") == "DELETE"
    raw = json.loads(base64.b64decode(event["prev_kv" if gone else "kv"]["value"]))
    version = int(event["kv"]["mod_revision"])
    new = event["kv"].get("create_revision") == event["kv"]["mod_revision"]
    kind = "DELETED" if gone else "ADDED" if new else "MODIFIED"
    meta = raw["metadata"]
    name, uid = meta["name"], meta["uid"]
    if raw["kind"] == "DAPOJob":
        attempts = raw.get("status", {}).get("attempts") or [{"number": 0}]
        return Entry(version, "DAPOJob", name, name, uid, attempts[-1]["number"], kind)
    labels = meta["labels"]
    return Entry(version, "Pod", name, labels["dapo.io/job"], uid, int(labels["dapo.io/attempt"]), kind)


def leftovers(api: KubernetesApi, namespace: str, job: str) -> list[str]:
    """What is still there of a job."""
    return [
        f"{path.rpartition('/')[2]} {found['metadata']['name']}"
        for path in CHILDREN
        for found in api.items(path.format(namespace), labelSelector=f"dapo.io/job={job}")
    ]
