"""The rate limit of all requests to the API server; a 429 pauses all of them. Namespaces take turns.

A request waits for the requests of its own namespace, and for one of each other's; so do jobs that are reconciled.
"""

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import ceil
from typing import Final

import aiohttp


class FairPlaces:
    """`places` at a time, and at most `most_each` of one namespace. Those who wait are served in the order in which
    they came within a namespace, and one namespace after another. With `one_each`, a namespace that has no place gets
    one beyond them: it waits for none of the others."""

    def __init__(self, places: int, *, one_each: bool = False, most_each: int | None = None) -> None:
        self._free, self._one_each, self._most_each = places, one_each, most_each or places
        self._taken = Counter[str]()
        # Namespaces in the order of their next turn; none has an empty queue.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[None]:
        """Hold a place within the block."""
        if not self._takes(namespace):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(namespace, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave(namespace)
                else:
                    self._forget(namespace, turn)
                raise
        try:
            yield
        finally:
            self._leave(namespace)

    def _takes(self, namespace: str) -> bool:
        taken = self._taken[namespace]
        if not (self._one_each and not taken) and (self._free <= 0 or taken >= self._most_each):
            return False
        self._free -= 1  # below zero: nobody else gets a shared place until so many have left
        self._taken[namespace] += 1
        return True

    def _leave(self, namespace: str) -> None:
        self._free += 1
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]
        while self._one_each and namespace in self._waiting and not self._taken[namespace]:
            self._serve(namespace)
        while self._free > 0 and (other := self._next()) is not None:
            self._serve(other)

    def _next(self) -> str | None:
        """The namespace whose turn it is."""
        return next((name for name in self._waiting if self._taken[name] < self._most_each), None)

    def _serve(self, namespace: str) -> None:
        """Give the first one of this namespace its place, and put the namespace last."""
        queue = self._waiting.pop(namespace)
        turn = queue.popleft()
        if queue:
            self._waiting[namespace] = queue
        if turn.cancelled():
            return
        self._free -= 1
        self._taken[namespace] += 1
        turn.set_result(None)

    def _forget(self, namespace: str, turn: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(namespace)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[namespace]


# Concurrent requests. Each needs a connection of its own, whose handshake costs more than the request does; and an API
# server that has hundreds of ours to answer does not renew the lease in time.
IN_FLIGHT: Final = 32
_NAMESPACE: Final = re.compile(r"/namespaces/([^/]+)/")
# Of them, those of one namespace: others do not wait until an admission webhook of that namespace responds.
SHARE: Final = 0.75
# For an answer to begin, after the request was sent: its turn may take longer.
TIMEOUT_SECONDS: Final = 30
_WAIT_SECONDS: Final = 1.0
_WAIT_MAX_SECONDS: Final = 30.0


class TokenBucket:
    """How long each request has to wait so that no more than `burst + rate * t` are sent in t seconds. Pure.

    Requests are served in order. Times are seconds of any clock that never goes back.
    """

    def __init__(self, rate: float, burst: int, now: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate {rate:g} and burst {burst} must be above zero")
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), now

    def reserve(self, now: float) -> float:
        """Take one token, if necessary a future one. Returns the seconds until it is available."""
        self._fill(now)
        self._tokens -= 1.0
        return max(0.0, self._at - now) + max(0.0, -self._tokens / self._rate)

    def pause(self, now: float, seconds: float) -> None:
        """Give out no token before `now + seconds`; requests that wait already keep theirs."""
        self._fill(now)
        if now + seconds > self._at:
            # All collected tokens would be spent at the end of the pause, and bring the next 429.
            self._tokens = min(self._tokens, 1.0)
            self._at = now + seconds

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
            self._at = now


class RateLimit:
    """The bucket, limits of concurrent requests and the time for an answer to begin, as aiohttp middleware."""

    def __init__(
        self, rate: float, burst: int, in_flight: int = IN_FLIGHT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._bucket = TokenBucket(rate, burst, clock())
        self._in_flight = FairPlaces(in_flight, most_each=ceil(in_flight * SHARE))
        self._turn = FairPlaces(1)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Wait for the request's turn and send it; a 429 pauses all others. A watch counts as concurrent only until its
        stream begins. Raises TimeoutError."""
        match = _NAMESPACE.search(request.url.path)
        namespace = match[1] if match else ""
        async with self._in_flight.place(namespace):
            async with self._turn.place(namespace):
                if wait := self._bucket.reserve(self._clock()):
                    await asyncio.sleep(wait)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                response = await handler(request)
        if response.status == 429:
            self._bucket.pause(self._clock(), _pause_seconds(response.headers.get("Retry-After", "")))
        return response


def _pause_seconds(retry_after: str) -> float:
    return min(float(retry_after), _WAIT_MAX_SECONDS) if retry_after.isdecimal() else _WAIT_SECONDS
