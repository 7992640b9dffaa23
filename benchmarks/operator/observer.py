"""Watches what the operator creates: when each pod existed, and when each job was ready."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import urllib3
from servers.kubernetes_api import KubernetesApi, Object, Refused
from subjects import Subject


class Observer:
    """Two threads, one watching pods (metadata only) and one the jobs. Times are `time.monotonic` at arrival."""

    def __init__(self, api: KubernetesApi, subject: Subject) -> None:
        self._api, self._subject = api, subject
        self.pods: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        self.gone: dict[str, float] = {}
        self.ready: dict[tuple[str, str], float] = {}
        self._stop = threading.Event()
        self.alive = 0

    def start(self) -> None:
        """Begin to watch, and return once both watches are open."""
        for target in (self._watch_pods, self._watch_jobs):
            threading.Thread(target=target, daemon=True).start()
        time.sleep(1.0)

    def stop(self) -> None:
        """End with the next event."""
        self._stop.set()

    def _watch_pods(self) -> None:
        for event in self._events("/api/v1/pods", metadata_only=True):
            meta = event["object"]["metadata"]
            owner = meta.get("labels", {}).get(self._subject.owner_label)
            if owner is None:
                continue
            if event["type"] == "ADDED" and meta["uid"] not in self.pods[meta["namespace"], owner]:
                self.pods[meta["namespace"], owner][meta["uid"]] = time.monotonic()
                self.alive += 1
            elif event["type"] == "DELETED" and meta["uid"] not in self.gone:
                self.gone[meta["uid"]] = time.monotonic()
                self.alive -= 1

    def _watch_jobs(self) -> None:
        for event in self._events(self._subject.path(None)):
            meta = event["object"]["metadata"]
            key = meta["namespace"], meta["name"]
            if event["type"] == "DELETED":
                self.ready.pop(key, None)
            elif not self._subject.ready(event["object"]):
                self.ready.pop(key, None)
            else:
                self.ready.setdefault(key, time.monotonic())

    def _events(self, path: str, metadata_only: bool = False) -> Iterator[Object]:
        version = self._api.get(path, limit=1)["metadata"]["resourceVersion"]
        while not self._stop.is_set():
            try:
                for event in self._api.watch(path, 300, resourceVersion=version, metadata_only=metadata_only):
                    if event["type"] == "ERROR":
                        raise SystemExit(f"the watch of {path} received an error: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event
                    if self._stop.is_set():
                        return
            except (urllib3.exceptions.HTTPError, Refused):
                time.sleep(0.2)


def percentiles(values: list[float]) -> str:
    """p50/p95/p99/max."""
    if not values:
        return "-"
    ordered = sorted(values)
    picked = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95, 0.99, 1.0)]
    return "/".join(f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in picked)


__all__ = ["Object", "Observer", "percentiles"]
