"""Two replicas and one lease, in virtual time."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import pytest
from patience import patient
from virtual_time import now, run_virtual

from dapo_operator.kube.leadership import (
    Leadership,
    LeadershipLostError,
    Lease,
    LeaseError,
    RenewalLoop,
    Sighting,
    Terms,
    claim,
    may_take,
    sighted,
)
from dapo_operator.kube.lease import KubeLease

TERMS = Terms()


@dataclass
class Etcd:
    """One lease with optimistic locking."""

    lease: Lease | None = None
    versions: int = 0
    writes: list[str] = field(default_factory=list)

    def store(self, lease: Lease) -> Lease | None:
        if lease.version != (self.lease.version if self.lease else ""):
            return None
        self.versions += 1
        self.lease = replace(lease, version=str(self.versions))
        self.writes.append(lease.holder)
        return self.lease


@dataclass
class Store:
    """One replica's way to it, which can be cut; `half` lets writes arrive and their answers be lost."""

    etcd: Etcd
    cut: bool = False
    half: bool = False
    hangs: bool = False

    async def read(self) -> Lease | None:
        await self._way()
        return self.etcd.lease

    async def write(self, lease: Lease) -> Lease | None:
        await self._way()
        written = self.etcd.store(lease)
        if self.half:
            raise LeaseError("no answer")
        return written

    async def _way(self) -> None:
        await asyncio.sleep(30 if self.hangs else 0.01)
        if self.cut:
            raise LeaseError("no route")


async def replica(leadership: Leadership, log: Callable[[str], None]) -> None:
    await leadership.acquire()
    log("leads")
    with contextlib.suppress(LeadershipLostError):
        await leadership.hold()
    log("lost")


@pytest.mark.parametrize(
    ("lease", "since", "at", "expected"),
    [
        (None, 0, 0, True),
        (Lease("", 12), 0, 0, True),
        (Lease("me", 12), 0, 0, True),
        (Lease("other", 12), 100, 112, False),
        (Lease("other", 12), 100, 112.1, True),
        (Lease("other", 60), 100, 112.1, False),
    ],
    ids=["none yet", "given up", "one's own", "renewed lately", "not renewed", "by the holder's own terms"],
)
def test_who_may_take_the_lease(lease: Lease | None, since: float, at: float, expected: bool) -> None:
    assert may_take(Sighting(lease, since), "me", at) is expected


def test_only_a_change_makes_a_sighting_newer() -> None:
    first = sighted(None, Lease("other", 12, version="1"), 100)
    assert sighted(first, Lease("other", 12, version="1"), 105) is first
    assert sighted(first, Lease("other", 12, version="2"), 105).since == 105


def test_a_claim_counts_the_change_of_holder_only() -> None:
    taken = claim(Lease("other", 60, transitions=3, version="7"), "me", TERMS)
    assert taken == Lease("me", TERMS.lasts, transitions=4, version="7")
    assert claim(taken, "me", TERMS) == taken


def _note(log: list[str], name: str, text: str) -> None:
    log.append(name + text)


def test_one_of_two_leads_and_renews() -> None:
    async def main() -> None:
        etcd, log = Etcd(), list[str]()
        tasks = [
            asyncio.create_task(replica(Leadership(Store(etcd), name, clock=now), partial(_note, log, name)))
            for name in ("a ", "b ")
        ]
        await asyncio.sleep(300)
        assert log == ["a leads"]
        assert etcd.lease and etcd.lease.transitions == 0
        assert 300 / TERMS.renew_every - 3 < len(etcd.writes) <= 300 / TERMS.renew_every + 1
        for task in tasks:
            task.cancel()

    run_virtual(main())


def test_a_killed_holder_is_followed_within_twenty_seconds() -> None:
    async def main() -> float:
        etcd = Etcd()
        first, second = (Leadership(Store(etcd), name, clock=now) for name in "ab")
        task = asyncio.create_task(replica(first, lambda text: None))
        await asyncio.sleep(7)
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(61)
        task.cancel()
        killed = now()
        await waiting
        assert etcd.lease and (etcd.lease.holder, etcd.lease.transitions) == ("b", 1)
        return now() - killed

    assert TERMS.lasts - TERMS.renew_every <= run_virtual(main()) < 20


@pytest.mark.parametrize("fault", ["cut", "hangs"])
def test_a_partitioned_holder_stops_before_another_begins(fault: str) -> None:
    async def main() -> None:
        etcd = Etcd()
        mine = Store(etcd)
        first, second = Leadership(mine, "a", clock=now), Leadership(Store(etcd), "b", clock=now)
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(20)
        setattr(mine, fault, True)
        began = now()
        while not waiting.done():
            assert not (first.holds() and second.holds())
            await asyncio.sleep(0.05)
        assert not first.holds()
        assert now() - began < 20
        with pytest.raises(LeadershipLostError):
            await holding

    run_virtual(main())


def test_a_paused_holder_may_not_write_when_it_goes_on() -> None:
    """SIGSTOP: its clock goes on while its code does not."""

    async def main() -> None:
        etcd, skip = Etcd(), [0.0]
        first = Leadership(Store(etcd), "a", clock=lambda: now() + skip[0])
        await first.acquire()
        assert first.holds()
        skip[0] = 60.0
        assert not first.holds()
        with pytest.raises(LeadershipLostError):
            await first.hold()

    run_virtual(main())


def test_a_renewal_whose_answer_was_lost_is_still_ours() -> None:
    async def main() -> None:
        store = Store(Etcd())
        leader = Leadership(store, "a", clock=now)
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        store.half = True
        await asyncio.sleep(TERMS.renew_every + 0.5)
        store.half = False
        await asyncio.sleep(60)
        assert leader.holds() and not holding.done()
        holding.cancel()

    run_virtual(main())


@pytest.mark.parametrize("after", [None, Lease("b", 12, version="")], ids=["deleted", "taken by another"])
def test_a_lease_that_is_no_longer_ours_is_lost_at_once(after: Lease | None) -> None:
    async def main() -> None:
        etcd = Etcd()
        leader = Leadership(Store(etcd), "a", clock=now)
        await leader.acquire()
        etcd.lease = replace(after, version="99") if after else None
        with pytest.raises(LeadershipLostError, match="holds the lease" if after else "deleted"):
            await leader.hold()
        assert not leader.holds()

    run_virtual(main())


def test_a_lease_that_was_given_up_is_taken_at_the_next_poll() -> None:
    async def main() -> None:
        etcd = Etcd()
        first, second = (Leadership(Store(etcd), name, clock=now) for name in "ab")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(5)
        await first.release()
        assert not first.holds()
        await asyncio.sleep(TERMS.poll + 0.1)
        assert waiting.done() and second.holds()
        await first.release()
        assert etcd.lease and etcd.lease.holder == "b"

    run_virtual(main())


def test_a_restarted_container_of_the_same_pod_goes_on_at_once() -> None:
    async def main() -> float:
        etcd = Etcd()
        await Leadership(Store(etcd), "pod-uid", clock=now).acquire()
        began = now()
        await Leadership(Store(etcd), "pod-uid", clock=now).acquire()
        return now() - began

    assert run_virtual(main()) < 1


def test_a_main_loop_that_is_busy_keeps_the_lease() -> None:
    """A thousand jobs to look at, each for a few milliseconds, before the next answer is read."""
    etcd = Etcd()
    leader = Leadership(Store(etcd), "a", Terms(renew_every=0.01))

    async def main(beside: RenewalLoop) -> None:
        await beside.run(leader.acquire())
        holding = asyncio.create_task(beside.run(leader.hold()))
        await asyncio.sleep(0)
        end = time.monotonic() + patient(30)
        while len(etcd.writes) < 5 and time.monotonic() < end:
            math.factorial(2000)  # and no `await`
        renewed = len(etcd.writes)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await beside.run(leader.release())
        assert renewed >= 5 and etcd.lease is not None and etcd.lease.holder == ""

    beside = RenewalLoop()
    try:
        asyncio.run(main(beside))
    finally:
        beside.close()


def test_a_lease_that_is_lost_in_its_thread_ends_the_operator() -> None:
    etcd = Etcd()
    leader = Leadership(Store(etcd), "a", Terms(renew_every=0.01))

    async def main(beside: RenewalLoop) -> None:
        await beside.run(leader.acquire())
        etcd.lease = Lease("b", 12, version="99")
        await beside.run(leader.hold())

    beside = RenewalLoop()
    try:
        with pytest.raises(LeadershipLostError, match="b holds the lease"):
            asyncio.run(main(beside))
    finally:
        beside.close()


def test_waiting_outlasts_an_api_server_that_is_down() -> None:
    async def main() -> None:
        store = Store(Etcd(), cut=True)
        leader = Leadership(store, "a", clock=now)
        waiting = asyncio.create_task(leader.acquire())
        await asyncio.sleep(120)
        assert not waiting.done()
        store.cut = False
        await waiting
        assert leader.holds()
        store.cut = True
        await leader.release()
        assert not leader.holds()

    run_virtual(main())


class Leases:
    """The requests for one Lease object."""

    def __init__(self) -> None:
        self.spec: dict[str, object] = {}
        self.version = 0

    async def create(self, _: object, body: dict[str, dict[str, object]]) -> dict[str, object]:
        return await self.patch(None, "", "", {"spec": body["spec"]})

    async def patch(self, _: object, __: str, ___: str, change: dict[str, dict[str, object]]) -> dict[str, object]:
        self.spec |= change["spec"]
        self.version += 1
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": self.spec}


def test_b35_a_lease_tells_since_when_it_is_held() -> None:
    leases, minutes = Leases(), iter(range(60))
    clock = lambda: datetime(2026, 1, 1, 0, next(minutes), tzinfo=UTC)  # noqa: E731
    first, second = (KubeLease(leases, "n", "l", clock) for _ in range(2))  # type: ignore[arg-type]

    async def times(store: KubeLease, holder: str) -> tuple[object, object]:
        await store.write(Lease(holder, 14.0, version=str(leases.version or "")))
        return str(leases.spec["acquireTime"])[14:16], str(leases.spec["renewTime"])[14:16]

    async def story() -> list[tuple[object, object]]:
        return [await times(first, "a"), await times(first, "a"), await times(second, "b"), await times(second, "b")]

    assert asyncio.run(story()) == [("00", "00"), ("00", "01"), ("02", "02"), ("02", "03")]
