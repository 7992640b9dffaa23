"""Leader election: of several replicas only the holder of a Lease works.

No replica compares its clock with another's. A waiting replica notes by its own clock when it saw the lease change, and
takes the lease once it has not changed for its duration (client-go does the same). The holder counts from before it
requested the renewal, and stops seconds before another replica may start; `holds` is checked before each write.
"""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Terms:
    """Seconds. After a holder is killed, another replica takes over within `lasts` and two `poll`s."""

    lasts: float = 14.0
    renew_every: float = 3.0
    give_up_after: float = 10.0
    retry_every: float = 1.0
    poll: float = 2.0


@dataclass(frozen=True)
class Lease:
    """The Lease object. `holder` is empty when released; `version` is the resource version, empty for a new one."""

    holder: str
    lasts: float
    transitions: int = 0
    version: str = ""


@dataclass(frozen=True)
class Sighting:
    """A lease as it was read, and since when (this replica's clock) it has been unchanged."""

    lease: Lease | None
    since: float


def sighted(before: Sighting | None, lease: Lease | None, now: float) -> Sighting:
    """The sighting after reading `lease`; the time of the previous one stays as long as nothing changed."""
    return before if before is not None and before.lease == lease else Sighting(lease, now)


def may_take(sighting: Sighting, identity: str, now: float) -> bool:
    """Whether `identity` may take the lease: it is free, its own, or has expired."""
    lease = sighting.lease
    return lease is None or lease.holder in ("", identity) or now - sighting.since > lease.lasts


def claim(lease: Lease | None, identity: str, terms: Terms) -> Lease:
    """The lease as `identity` writes it, given what it read."""
    if lease is None:
        return Lease(identity, terms.lasts)
    return replace(
        lease, holder=identity, lasts=terms.lasts, transitions=lease.transitions + (lease.holder != identity)
    )


class LeaseStore(Protocol):
    """Where the lease is stored. Both methods may raise `LeaseError`."""

    async def read(self) -> Lease | None:
        """The lease; None when it does not exist yet."""
        ...

    async def write(self, lease: Lease) -> Lease | None:
        """Write and return the lease; None when it changed since `lease.version`."""
        ...


class LeaseError(Exception):
    """The lease could not be read or written."""


class LeadershipLostError(Exception):
    """This replica must not write any more: it could not renew the lease, or another replica holds it."""


def boot_seconds() -> float:
    """A clock that also runs while the machine sleeps; `time.monotonic` where the system has none."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class RenewalLoop:
    """An event loop in a thread of its own. An election that runs here, with connections of its own, does not wait for
    the main one, which may have a thousand jobs to look at before it reads an answer. One that hangs for good keeps the
    lease, but not for long: its health says so."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
        self._thread.start()

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of `call`, which runs over there. Cancelling this cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Leadership:
    """One replica in the election.

    `identity` must be unique to the process; a pod's UID is, and lets a restarted container continue immediately.
    """

    def __init__(
        self, store: LeaseStore, identity: str, terms: Terms | None = None, clock: Callable[[], float] = boot_seconds
    ) -> None:
        self._store, self._identity, self._terms, self._clock = store, identity, terms or Terms(), clock
        self._lease: Lease | None = None
        self._sure_until = 0.0

    def holds(self) -> bool:
        """Whether no other replica can be working now."""
        return self._clock() < self._sure_until

    async def acquire(self) -> None:
        """Wait until this replica holds the lease."""
        seen: Sighting | None = None
        while True:
            try:
                seen = sighted(seen, await self._store.read(), self._clock())
                if may_take(seen, self._identity, self._clock()) and await self._write(seen.lease):
                    return
            except LeaseError as error:
                logger.warning("Could not read the lease: %s", error)
            await asyncio.sleep(self._terms.poll * random.uniform(0.8, 1.0))

    async def hold(self) -> None:
        """Renew until cancelled. Raises LeadershipLostError when that fails for too long."""
        while True:
            await asyncio.sleep(self._terms.renew_every)
            await self._renew()

    async def release(self) -> None:
        """Release the lease, so that another replica need not wait for it to expire; never raises LeaseError."""
        lease, self._lease, self._sure_until = self._lease, None, 0.0
        if lease is None:
            return
        try:
            await self._store.write(replace(lease, holder=""))
        except LeaseError as error:
            logger.warning("Could not release the lease; other replicas wait %g s for it: %s", lease.lasts, error)

    async def _renew(self) -> None:
        deadline = self._sure_until
        while self._clock() < deadline:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    if await self._write(self._lease) or await self._write(await self._ours()):
                        return
            except (LeaseError, TimeoutError) as error:
                logger.warning("Could not renew the lease: %s", error or "timed out")
            await asyncio.sleep(self._terms.retry_every)
        self._sure_until = 0.0
        raise LeadershipLostError(f"could not renew the lease for {self._terms.give_up_after:g} s")

    async def _ours(self) -> Lease | None:
        """The lease after a conflict: perhaps this replica's previous write arrived without a response."""
        lease = await self._store.read()
        if lease is None or lease.holder != self._identity:
            self._sure_until = 0.0
            raise LeadershipLostError(
                f"{lease.holder or 'no replica'} holds the lease" if lease else "the lease was deleted"
            )
        return lease

    async def _write(self, lease: Lease | None) -> bool:
        asked = self._clock()
        written = await self._store.write(claim(lease, self._identity, self._terms))
        if written is not None:
            self._lease, self._sure_until = written, asked + self._terms.give_up_after
        return written is not None
