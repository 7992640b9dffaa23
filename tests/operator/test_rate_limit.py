"""The client-side rate limit: the bucket by itself, and in an aiohttp session."""

import asyncio
import time

import aiohttp
import pytest
from aiohttp import web

from dapo_operator.kube.rate_limit import RateLimit, TokenBucket


@pytest.mark.parametrize(
    ("asked_at", "expected"),
    [
        ([0, 0, 0], [0, 0, 0]),
        ([0, 0, 0, 0, 0], [0, 0, 0, 0.1, 0.2]),
        ([0, 0, 0, 0, 0.1], [0, 0, 0, 0.1, 0.1]),
        ([0, 0, 0, 9, 9, 9, 9], [0, 0, 0, 0, 0, 0, 0.1]),
    ],
    ids=["the burst at once", "then at the rate", "those who come later queue", "it refills to the burst, no further"],
)
def test_how_long_a_request_waits(asked_at: list[float], expected: list[float]) -> None:
    bucket = TokenBucket(rate=10, burst=3, now=0)
    assert [bucket.reserve(now) for now in asked_at] == pytest.approx(expected)


def test_a_pause_holds_for_all_and_lets_no_herd_out() -> None:
    bucket = TokenBucket(rate=10, burst=100, now=0)
    bucket.pause(0, 2)
    bucket.pause(0, 1)
    assert [bucket.reserve(0) for _ in range(3)] == pytest.approx([2, 2.1, 2.2])
    assert bucket.reserve(12) == 0


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (1.0, 0)], ids=["rate", "burst"])
def test_a_limit_of_nothing_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="above zero"):
        TokenBucket(rate, burst, 0)


async def _timed(codes: list[int], limit: RateLimit, paths: list[str]) -> list[float]:
    """Seconds after which each request arrived; the server answers with these codes, then 200."""
    arrived, left = list[float](), list(codes)

    async def answer(_: web.Request) -> web.Response:
        arrived.append(time.monotonic())
        code = left.pop(0) if left else 200
        return web.Response(status=code, headers={"Retry-After": "1"} if code == 429 else {})

    app = web.Application()
    app.router.add_get("/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession(middlewares=(limit,)) as session:
        begun = time.monotonic()
        for path in paths:
            async with session.get(f"http://127.0.0.1:{port}{path}"):
                pass
    await runner.cleanup()
    return [at - begun for at in arrived]


def test_a_429_holds_the_next_request_back() -> None:
    _, second = asyncio.run(_timed([429], RateLimit(1000, 10), ["/api/v1/pods"] * 2))
    assert second >= 0.9


def test_requests_go_out_at_the_rate() -> None:
    times = asyncio.run(_timed([], RateLimit(20, 1), ["/api/v1/pods"] * 5))
    assert times[-1] >= 0.19


def test_so_many_requests_are_under_way_at_once_and_no_more() -> None:
    most, now = [0], [0]

    async def answer(_: web.Request) -> web.Response:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.02)
        now[0] -= 1
        return web.Response()

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{rest:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/pods"
        async with aiohttp.ClientSession(middlewares=(RateLimit(1000, 1000, in_flight=3),)) as session:
            await asyncio.gather(*(session.get(url) for _ in range(20)))
        await runner.cleanup()

    asyncio.run(main())
    assert most == [3]
