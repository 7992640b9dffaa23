"""What the operator's other modules report to: one object, `Telemetry`, its aiohttp middleware, and the metrics. Their
names, labels and buckets are an interface: dashboards and alerts use them."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dapo_core.run.reasons import Reason
from dapo_operator.telemetry.health import Health, Key
from dapo_operator.telemetry.log_format import bound

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


_WRITING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_SUBRESOURCES: Final = frozenset({"status", "token", "scale"})


@dataclass
class _Reconciliation:
    """`woken_at` is None once it has written something, or when nothing woke the job."""

    woken_at: float | None


_current: ContextVar[_Reconciliation | None] = ContextVar("reconciliation", default=None)


class Telemetry:
    """Metrics and health of one operator process. `jobs` returns how many jobs have each condition True."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.jobs: Callable[[], Counts] = dict
        self.health = Health(clock)
        self.metrics = OperatorMetrics(lambda: self.jobs())
        self.metrics.queue_depth.set_function(lambda: self.health.waiting)

    def woken(self, key: Key) -> None:
        """The job has changed; the first of several changes counts."""
        self.health.woken(key)

    def forget(self, key: Key) -> None:
        """The job is no longer reconciled."""
        self.health.reconciling(key)

    @contextlib.contextmanager
    def reconciling(self, key: Key, attempt: int | None = None) -> Iterator[None]:
        """Around one reconciliation, requests included. Log records inside carry the job and the attempt."""
        begun = self._clock()
        waited = self.health.reconciling(key)
        token = _current.set(_Reconciliation(None if waited is None else begun - waited))
        result = "error"
        try:
            with bound(job=f"{key[0]}/{key[1]}", attempt=attempt):
                yield
            result = "ok"
        finally:
            _current.reset(token)
            self.metrics.reconcile.observe(self._clock() - begun)
            self.metrics.reconciles.labels(result).inc()

    def restarted(self, reason: str) -> None:
        """An attempt ended for this reason, and another follows."""
        # A trainer may write any reason; each label value is kept for as long as the operator runs.
        self.metrics.restarts.labels(reason if reason in set(Reason) else "Other").inc()

    async def middleware(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Counts each request of the session as the API server gets it: has to be the innermost middleware."""
        if request.method in _WRITING:
            self.acted()
        watch = request.url.query.get("watch") == "true"
        verb = "WATCH" if watch else request.method
        begun, code = self._clock(), "none"
        try:
            response = await handler(request)
            code = str(response.status)
            return response
        finally:
            self.metrics.requests.labels(verb, resource_in(request.url.path), code).inc()
            self.metrics.request.labels(verb).observe(self._clock() - begun)

    def acted(self) -> None:
        """The current reconciliation writes; its first write ends the time since the job was woken."""
        current = _current.get()
        if current is not None and current.woken_at is not None:
            self.metrics.event_to_action.observe(self._clock() - current.woken_at)
            current.woken_at = None


def resource_in(path: str) -> str:
    """`pods` or `dapojobs/status` of a URL path; never a name, since a label must not have too many values."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return "other"
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 and rest[2] in _SUBRESOURCES else rest[0]
