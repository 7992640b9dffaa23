"""The operator's metrics. Names, labels and buckets are an interface: dashboards and alerts use them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_PREFIX: Final = "dapo_operator"
# Seconds. A reconciliation takes a millisecond, a request ten; the targets are two and thirty seconds.
_SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)

Counts = Mapping[str, int]


class OperatorMetrics:
    """One registry and its metrics. `jobs` returns how many jobs have each condition True."""

    def __init__(self, jobs: Callable[[], Counts]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(_JobsByCondition(jobs))
        self.reconcile = self._histogram("reconcile_seconds", "Time to reconcile a job, requests included.", _SHORT)
        self.event_to_action = self._histogram(
            "event_to_action_seconds", "Time from the first change of a job to the first write that follows.", _LONG
        )
        self.request = self._histogram("api_request_seconds", "Requests to the API server.", _SHORT, ["verb"])
        self.requests = self._counter("api_requests", "Requests to the API server.", ["verb", "resource", "code"])
        self.reconciles = self._counter("reconciles", "Reconciliations, by result.", ["result"])
        self.restarts = self._counter("restarts", "Restarts, by the reason why the previous attempt ended.", ["reason"])
        self.queue_depth = self._gauge("queue_depth", "Jobs that were woken and not reconciled yet.")
        self.leader = self._gauge("leader", "1 while this replica holds the lease.")

    def _histogram(self, name: str, text: str, buckets: Iterable[float], labels: Iterable[str] = ()) -> Histogram:
        return Histogram(f"{_PREFIX}_{name}", text, labels, buckets=tuple(buckets), registry=self.registry)

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", text, registry=self.registry)


class _JobsByCondition(Collector):
    """Counted at each scrape: a gauge that is kept up to date drifts."""

    def __init__(self, jobs: Callable[[], Counts]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(f"{_PREFIX}_jobs", "DAPOJobs, by condition that is True.", labels=["condition"])
        for condition, count in sorted(self._jobs().items()):
            family.add_metric([condition], count)
        return [family]
