"""Namespaces share the operator fairly (B33): whatever one of them has to do, another's first pod is soon created."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import aiohttp
import pytest
from virtual_time import now, run_virtual
from yarl import URL

from dapo_operator.kube.rate_limit import IN_FLIGHT, FairPlaces, RateLimit
from dapo_operator.shared import CONCURRENT

RATE, BURST = 100.0, 200  # the operator's defaults
LATENCY = 0.02


async def order(places: FairPlaces, arrivals: str) -> str:
    """Who is served in which order, by namespaces of one letter, if all arrive while the one place is taken."""
    served = ""

    async def work(namespace: str) -> None:
        nonlocal served
        async with places.place(namespace):
            served += namespace
            await asyncio.sleep(1)

    await asyncio.gather(*map(work, arrivals))
    return served


@pytest.mark.parametrize(
    ("one_each", "arrivals", "served"),
    [
        (False, "aaaa", "aaaa"),
        (False, "aaaabb", "aababa"),
        (False, "aaabbbccc", "aabcabcbc"),
        (True, "aaaabb", "ababaa"),
        (True, "aabbcc", "abcabc"),
    ],
)
def test_namespaces_take_turns(one_each: bool, arrivals: str, served: str) -> None:
    assert run_virtual(order(FairPlaces(1, one_each=one_each), arrivals)) == served


def test_one_namespace_has_a_share_alone() -> None:
    async def main() -> tuple[float, float]:
        places, began = FairPlaces(4, most_each=3), now()

        async def work(namespace: str) -> float:
            async with places.place(namespace):
                await asyncio.sleep(10)
            return now() - began

        slow = [asyncio.create_task(work("slow")) for _ in range(9)]
        await asyncio.sleep(0)
        other = await work("other")
        return other, max(await asyncio.gather(*slow))

    assert run_virtual(main()) == (10.0, 30.0)


def test_a_place_that_nobody_waits_for_any_more_is_passed_on() -> None:
    async def main() -> list[str]:
        places, served = FairPlaces(1), list[str]()

        async def work(namespace: str) -> None:
            async with places.place(namespace):
                served.append(namespace)
                await asyncio.sleep(1)

        tasks = [asyncio.create_task(work(name)) for name in ("a", "b", "c", "d", "b")]
        await asyncio.sleep(0.5)
        tasks[1].cancel()  # waits
        await asyncio.sleep(0.5)
        tasks[2].cancel()  # has just been given its place, or holds it
        await asyncio.gather(*tasks, return_exceptions=True)
        async with places.place("e"):
            served.append("e")
        return served

    served = run_virtual(main())
    assert served[0] == "a" and sorted(served[1:]) in (["b", "c", "d", "e"], ["b", "d", "e"])


Ask = Callable[[str, str], Awaitable[None]]


async def reconcile(slots: FairPlaces, ask: Ask, namespace: str, pods: int, created: list[float]) -> None:
    """What the reconciler asks for when a job starts: its status, what the pods need, then the pods."""
    async with slots.place(namespace):
        await ask(namespace, "dapojobs")
        await asyncio.gather(
            *(ask(namespace, kind) for kind in ("services", "configmaps", "networkpolicies", "secrets"))
        )
        for first in range(0, pods, 50):
            await asyncio.gather(*(ask(namespace, "pods") for _ in range(first, min(pods, first + 50))))
            created.append(now())


def asking(limit: RateLimit, latency: float) -> Ask:
    async def handler(_request: aiohttp.ClientRequest) -> aiohttp.ClientResponse:
        await asyncio.sleep(latency)
        return cast(aiohttp.ClientResponse, Answer())

    async def ask(namespace: str, kind: str) -> None:
        await limit(cast(aiohttp.ClientRequest, Question(namespace, kind)), handler)

    return ask


class Question:
    def __init__(self, namespace: str, kind: str) -> None:
        self.url = URL(f"https://kube/api/v1/namespaces/{namespace}/{kind}")


class Answer:
    status = 201


@pytest.mark.parametrize(
    ("others", "jobs", "pods", "latency"),
    [(1, 200, 10, LATENCY), (1, 1, 2000, LATENCY), (1, 40, 2000, LATENCY), (10, 50, 10, LATENCY), (1, 200, 10, 0.3)],
    ids=["200 jobs of ten pods", "one job of 2,000", "40 jobs of 2,000", "ten such tenants", "a slow API server"],
)
def test_b33_another_tenants_first_pod_is_delayed_by_two_seconds_at_most(
    others: int, jobs: int, pods: int, latency: float
) -> None:
    async def first_pod(busy: bool) -> float:
        slots = FairPlaces(CONCURRENT, one_each=True)
        ask = asking(RateLimit(RATE, BURST, IN_FLIGHT, clock=now), latency)
        ignored = list[float]()
        tenants = [
            asyncio.create_task(reconcile(slots, ask, f"busy-{number % others}", pods, ignored))
            for number in range(jobs * others if busy else 0)
        ]
        await asyncio.sleep(5)  # the burst is spent
        began, mine = now(), list[float]()
        await reconcile(slots, ask, "small", 1, mine)
        for task in tenants:
            task.cancel()
        await asyncio.gather(*tenants, return_exceptions=True)
        return mine[0] - began

    assert run_virtual(first_pod(busy=True)) - run_virtual(first_pod(busy=False)) <= 2.0
