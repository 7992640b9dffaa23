"""Where the operator's other modules say what they do: one object, `Telemetry`, and its aiohttp middleware."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import aiohttp

from dapo_operator.telemetry.logs import bound
from dapo_operator.telemetry.metrics import Counts, Metrics
from dapo_operator.telemetry.pulse import Key, Pulse

_WRITING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_SUBRESOURCES: Final = frozenset({"status", "token", "scale"})


@dataclass
class _Look:
    """A look that has not written yet knows since when its job has had news."""

    news_at: float | None


_look: ContextVar[_Look | None] = ContextVar("look", default=None)


class Telemetry:
    """Counts, times and health of one operator process. `jobs` answers how many jobs have each condition True."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.jobs: Callable[[], Counts] = dict
        self.pulse = Pulse(clock)
        self.metrics = Metrics(lambda: self.jobs())
        self.metrics.queue_depth.set_function(lambda: self.pulse.waiting)

    def news(self, key: Key) -> None:
        """A job was woken; the first of several counts."""
        self.pulse.news(key)

    def forget(self, key: Key) -> None:
        """Nobody works on this job any more."""
        self.pulse.looked(key)

    @contextlib.contextmanager
    def looking(self, key: Key, attempt: int | None = None) -> Iterator[None]:
        """Around one look at a job, requests included. Log records inside carry the job and the attempt."""
        begun = self._clock()
        waited = self.pulse.looked(key)
        token = _look.set(_Look(None if waited is None else begun - waited))
        result = "error"
        try:
            with bound(job=f"{key[0]}/{key[1]}", attempt=attempt):
                yield
            result = "ok"
        finally:
            _look.reset(token)
            self.metrics.reconcile.observe(self._clock() - begun)
            self.metrics.reconciles.labels(result).inc()

    def restarted(self, reason: str) -> None:
        """An attempt ended for this reason and another follows."""
        self.metrics.restarts.labels(reason).inc()

    async def middleware(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Of the session: counts each request as the API server gets it. Has to be the innermost."""
        if request.method in _WRITING:
            self.acted()
        watch = request.url.query.get("watch") == "true"
        verb = "WATCH" if watch else request.method
        begun, code = self._clock(), "none"
        try:
            answer = await handler(request)
            code = str(answer.status)
            return answer
        finally:
            self.metrics.requests.labels(verb, resource_in(request.url.path), code).inc()
            self.metrics.request.labels(verb).observe(self._clock() - begun)

    def acted(self) -> None:
        """The look that is under way writes; its first write ends the time since the job's news."""
        look = _look.get()
        if look is not None and look.news_at is not None:
            self.metrics.event_to_action.observe(self._clock() - look.news_at)
            look.news_at = None


def resource_in(path: str) -> str:
    """`pods` or `dapojobs/status` of a URL path; never a name, of which there are too many for a label."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return "other"
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 and rest[2] in _SUBRESOURCES else rest[0]
