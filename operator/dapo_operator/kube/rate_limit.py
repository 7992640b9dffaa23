"""How fast this operator may ask the API server, and that it waits together when it is told to wait."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import aiohttp

# Holding the lease must not wait behind ten thousand pods.
_EXEMPT: Final = "/leases/"
# Requests under way at once. Each needs a connection of its own, whose handshake costs more than the request does;
# and an API server that has hundreds of ours to answer does not answer the lease's in time.
IN_FLIGHT: Final = 32
_WAIT_SECONDS: Final = 1.0
_WAIT_MAX_SECONDS: Final = 30.0


class TokenBucket:
    """Pure: says how long each request has to wait so that no more than `burst + rate * t` go out in t seconds.

    Requests are served in the order in which they asked. Times are seconds of any clock that does not go back.
    """

    def __init__(self, rate: float, burst: int, now: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate {rate:g} and burst {burst} must be above zero")
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), now

    def reserve(self, now: float) -> float:
        """Take one token, if need be one of the future. Answers the seconds until it is there."""
        self._fill(now)
        self._tokens -= 1.0
        return max(0.0, self._at - now) + max(0.0, -self._tokens / self._rate)

    def pause(self, now: float, seconds: float) -> None:
        """Give no token before `now + seconds`; those that wait already are not called back."""
        self._fill(now)
        if now + seconds > self._at:
            # What had gathered would all go out at the end of the pause, and be told to wait again.
            self._tokens = min(self._tokens, 1.0)
            self._at = now + seconds

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
            self._at = now


class RateLimit:
    """The bucket, and a limit of requests under way, as aiohttp middleware of the operator's one session."""

    def __init__(
        self, rate: float, burst: int, in_flight: int = IN_FLIGHT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._bucket = TokenBucket(rate, burst, clock())
        self._places = asyncio.Semaphore(in_flight)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Wait for the request's turn, send it, and have all others wait when the answer is 429. A watch is under way
        only until its stream begins."""
        if _EXEMPT in request.url.path:
            return await handler(request)
        if wait := self._bucket.reserve(self._clock()):
            await asyncio.sleep(wait)
        async with self._places:
            answer = await handler(request)
        if answer.status == 429:
            self._bucket.pause(self._clock(), _patience(answer.headers.get("Retry-After", "")))
        return answer


def _patience(retry_after: str) -> float:
    return min(float(retry_after), _WAIT_MAX_SECONDS) if retry_after.isdecimal() else _WAIT_SECONDS
