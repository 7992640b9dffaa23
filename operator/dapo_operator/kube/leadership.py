"""Which of the operator's replicas works: the holder of a Lease.

No replica compares its clock with another's. It notes by its own clock when it saw the lease change, and takes it when
it has not changed for as long as the lease lasts (client-go does the same). The holder counts from before it asked for
the renewal, and stops seconds before anybody else may begin; `holds` is asked before each write.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """Seconds. After a holder is killed, another works within `lasts` and two `poll`s."""

    lasts: float = 14.0
    renew_every: float = 3.0
    give_up_after: float = 10.0
    retry_every: float = 1.0
    poll: float = 2.0


@dataclass(frozen=True)
class Lease:
    """The Lease object. `holder` is empty when it was given up; `version` is the API server's, empty for a new one."""

    holder: str
    lasts: float
    transitions: int = 0
    version: str = ""


@dataclass(frozen=True)
class Sighting:
    """A lease as it was read, and since when (our clock) it has been like this."""

    lease: Lease | None
    since: float


def sighted(before: Sighting | None, lease: Lease | None, now: float) -> Sighting:
    """The sighting after reading `lease`: older ones count as long as nothing changed."""
    return before if before is not None and before.lease == lease else Sighting(lease, now)


def may_take(sighting: Sighting, identity: str, now: float) -> bool:
    """Whether `identity` may write itself into the lease: it is free, its own, or was not renewed for too long."""
    lease = sighting.lease
    return lease is None or lease.holder in ("", identity) or now - sighting.since > lease.lasts


def claim(lease: Lease | None, identity: str, terms: Terms) -> Lease:
    """The lease as `identity` writes it, over what it read."""
    if lease is None:
        return Lease(identity, terms.lasts)
    return replace(
        lease, holder=identity, lasts=terms.lasts, transitions=lease.transitions + (lease.holder != identity)
    )


class LeaseStore(Protocol):
    """Where the lease is. Both may raise `LeaseError`."""

    async def read(self) -> Lease | None:
        """The lease, or None when there is none yet."""
        ...

    async def write(self, lease: Lease) -> Lease | None:
        """Write it as of now. None when somebody wrote since it was read at `lease.version`."""
        ...


class LeaseError(Exception):
    """The lease could not be read or written."""


class LeadershipLostError(Exception):
    """This replica must not write any more: it could not renew the lease, or somebody else has it."""


def boot_seconds() -> float:
    """A clock that goes on while the machine sleeps; `time.monotonic` where the system has none."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Leadership:
    """One replica's part in the election.

    `identity` must be of one process alone; a pod's UID is, and lets its restarted container go on at once.
    """

    def __init__(
        self, store: LeaseStore, identity: str, terms: Terms | None = None, clock: Callable[[], float] = boot_seconds
    ) -> None:
        self._store, self._identity, self._terms, self._clock = store, identity, terms or Terms(), clock
        self._lease: Lease | None = None
        self._sure_until = 0.0

    def holds(self) -> bool:
        """Whether nobody else can be at work now."""
        return self._clock() < self._sure_until

    async def acquire(self) -> None:
        """Return when this replica holds the lease."""
        seen: Sighting | None = None
        while True:
            try:
                seen = sighted(seen, await self._store.read(), self._clock())
                if may_take(seen, self._identity, self._clock()) and await self._write(seen.lease):
                    return
            except LeaseError as error:
                logger.warning("The lease can not be read: %s", error)
            await asyncio.sleep(self._terms.poll * random.uniform(0.8, 1.0))

    async def hold(self) -> None:
        """Renew for ever. Raises LeadershipLostError when that fails for too long; then nothing may be written."""
        while True:
            await asyncio.sleep(self._terms.renew_every)
            await self._renew()

    async def release(self) -> None:
        """Give the lease up, so that another replica need not wait for it to run out. Does its best."""
        lease, self._lease, self._sure_until = self._lease, None, 0.0
        if lease is None:
            return
        try:
            await self._store.write(replace(lease, holder=""))
        except LeaseError as error:
            logger.warning("The lease was not given up, so others wait %g s for it: %s", lease.lasts, error)

    async def _renew(self) -> None:
        deadline = self._sure_until
        while self._clock() < deadline:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    if await self._write(self._lease) or await self._write(await self._ours()):
                        return
            except (LeaseError, TimeoutError) as error:
                logger.warning("The lease could not be renewed: %s", error or "no answer in time")
            await asyncio.sleep(self._terms.retry_every)
        self._sure_until = 0.0
        raise LeadershipLostError(f"the lease could not be renewed for {self._terms.give_up_after:g} s")

    async def _ours(self) -> Lease | None:
        """The lease after a renewal that was refused: perhaps our own write before had arrived without an answer."""
        lease = await self._store.read()
        if lease is None or lease.holder != self._identity:
            self._sure_until = 0.0
            raise LeadershipLostError(f"{lease.holder or 'nobody'} has the lease" if lease else "the lease was deleted")
        return lease

    async def _write(self, lease: Lease | None) -> bool:
        asked = self._clock()
        written = await self._store.write(claim(lease, self._identity, self._terms))
        if written is not None:
            self._lease, self._sure_until = written, asked + self._terms.give_up_after
        return written is not None
