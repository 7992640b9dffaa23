"""The rate limit of all requests to the API server; a 429 pauses all of them.

Namespaces take turns: a request waits for the requests of its own namespace, and for one of each other's.
"""

import asyncio
import re
import time
from collections.abc import Callable
from math import ceil
from typing import Final

import aiohttp

from dapo_operator.kube.fair_places import FairPlaces

# Renewing the lease must not wait behind ten thousand pods.
_EXEMPT: Final = "/leases/"
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
        path = request.url.path
        if _EXEMPT in path:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await handler(request)
        match = _NAMESPACE.search(path)
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
