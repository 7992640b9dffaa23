"""Viewers who open a page at once: each speaks Streamlit's protocol to the server and reads until it has everything."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from itertools import chain
from statistics import quantiles
from typing import Any, TypeVar

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

T = TypeVar("T")
REFRESHES = 100
# Nothing is read any more once the store has been still for longer than anything is kept.
SETTLED_SECONDS = 25


def measure(address: str, query: str, viewers: int) -> dict[str, float]:
    """Seconds until the server has sent a viewer the whole page, and what it worked for that."""
    server = server_of(address)
    began = _used(server)
    took = _run(_all(_stream(address), query, viewers))
    return {
        f"{viewers} viewers at once: server's processor for each, ms": 1000 * (_used(server) - began) / viewers,
        f"{viewers} viewers at once: p50, s": quantiles(took, n=100)[49],
        f"{viewers} viewers at once: p95, s": quantiles(took, n=100)[94],
    }


def points_sent(address: str, query: str) -> int:
    """Points of all curves that one viewer receives to draw."""
    return _run(_one(_stream(address), query))[1]


def quiet(
    address: str, pages: Mapping[str, tuple[str, str]], seconds: float, crowd: int, write: Callable[[], None]
) -> dict[str, float]:
    """What viewers whose pages follow the store cost while nothing happens to what they show: the server's milliseconds
    of processor for a viewer and a refresh, of which there is one every so many `seconds`, and the bytes and elements
    sent to all of them; what the server takes without a viewer does not count. One viewer alone, a `crowd`, and one
    while others `write` to the store."""
    server = server_of(address)
    at_rest = _at_rest(server, seconds)
    figures = {f"the server without a viewer: processor, ms every {seconds} s": 1000 * at_rest / REFRESHES}
    for name, (page, query) in pages.items():
        for many, writes in ((1, None), (crowd, None), (1, write)):
            used, size, elements = _run(_idle(_stream(address), page, query, many, seconds, server, writes))
            of = f"{name}, {many} viewer{'s' * (many > 1)}{' while others write' * bool(writes)}"
            figures |= {
                f"{of}: server's processor for a viewer's refresh, ms": 1000 * (used - at_rest) / REFRESHES / many,
                f"{of}: bytes sent in {REFRESHES} refreshes": float(size),
                f"{of}: elements sent in {REFRESHES} refreshes": float(elements),
            }
    return figures


def server_of(address: str) -> psutil.Process:
    """The process that listens there, a child of this one."""
    port = int(address.rsplit(":", 1)[1])
    return next(
        process
        for process in psutil.Process().children(recursive=True)
        if any(each.laddr.port == port and each.status == "LISTEN" for each in process.net_connections())
    )


def _at_rest(server: psutil.Process, seconds: float) -> float:
    began = _used(server)
    time.sleep(REFRESHES * seconds)
    return _used(server) - began


def _used(server: psutil.Process) -> float:
    """Seconds of processor so far."""
    times = server.cpu_times()
    return float(times.user + times.system)


async def _idle(
    url: str,
    page: str,
    query: str,
    viewers: int,
    seconds: float,
    server: psutil.Process,
    write: Callable[[], None] | None,
) -> tuple[float, int, int]:
    """Seconds of the server's processor, bytes and elements of so many viewers' refreshes. Each has the page and waits
    as a browser does: with Streamlit's connection, and with the one by which the server says that it is out of date."""
    async with AsyncExitStack() as stack:
        opened = [await _opened(stack, url, page, query) for _ in range(viewers)]
        await asyncio.sleep(SETTLED_SECONDS)
        for socket in chain(*opened):
            await _received(socket)
        began = _used(server)
        for _ in range(REFRESHES):
            if write is not None:
                await asyncio.to_thread(write)
            await asyncio.sleep(seconds)
        used = _used(server) - began
        drawn = [message for pages, _ in opened for message in await _received(pages)]
        told = [message for _, waiting in opened for message in await _received(waiting)]
        elements = sum(ForwardMsg.FromString(each).delta.WhichOneof("type") == "new_element" for each in drawn)
        return used, sum(map(len, drawn + told)), elements


async def _opened(stack: AsyncExitStack, url: str, page: str, query: str) -> tuple[ClientConnection, ClientConnection]:
    """A viewer's page, and the connection by which the server says that it is out of date."""
    pages = await stack.enter_async_context(connect(url, subprotocols=["streamlit"], max_size=None))  # type: ignore[list-item]
    message = BackMsg()
    message.rerun_script.query_string = query
    message.rerun_script.page_name = page
    await pages.send(message.SerializeToString())
    sent = [answer.delta.new_element.bidi_component for answer in await _until_finished(pages)]
    path = next(json.loads(each.json)["path"] for each in sent if each.component_name == "dapo_live")
    return pages, await stack.enter_async_context(connect(url.replace("_stcore/stream", path)))


async def _received(socket: ClientConnection) -> list[bytes]:
    """What has come and was not read yet."""
    found: list[bytes] = []
    with suppress(TimeoutError):
        while True:
            raw = await asyncio.wait_for(socket.recv(), 0.05)
            found.append(raw if isinstance(raw, bytes) else raw.encode())
    return found


async def _until_finished(socket: ClientConnection) -> list[ForwardMsg]:
    answers: list[ForwardMsg] = []
    async for raw in socket:
        answer = ForwardMsg()
        answer.ParseFromString(raw if isinstance(raw, bytes) else raw.encode())
        answers.append(answer)
        if answer.WhichOneof("type") == "script_finished":
            break
    return answers


def _run(work: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _stream(address: str) -> str:
    return address.replace("http://", "ws://") + "/_stcore/stream"


async def _all(url: str, query: str, viewers: int) -> list[float]:
    return [took for took, _ in await asyncio.gather(*(_one(url, query) for _ in range(viewers)))]


async def _one(url: str, query: str) -> tuple[float, int]:
    """Seconds, and points of curves."""
    began = time.perf_counter()
    async with connect(url, subprotocols=["streamlit"], max_size=None) as socket:  # type: ignore[list-item]
        message = BackMsg()
        message.rerun_script.query_string = query
        message.rerun_script.page_name = "run"
        await socket.send(message.SerializeToString())
        charts = points = 0
        async for raw in socket:
            answer = ForwardMsg()
            answer.ParseFromString(raw if isinstance(raw, bytes) else raw.encode())
            if answer.delta.new_element.bidi_component.component_name == "dapo_charts":
                sent = json.loads(answer.delta.new_element.bidi_component.bytes)["charts"]
                charts += len(sent)
                points += sum(_points(line) for chart in sent for line in chart["lines"])
            if answer.WhichOneof("type") == "script_finished" and charts >= 10:
                return time.perf_counter() - began, points
    raise RuntimeError(f"The server ended the conversation after {charts} charts")


def _points(line: Mapping[str, Any]) -> int:
    """Of the curve, of its band's edges and of the smoothed curve."""
    return sum(len(line.get(name, ())) for name in ("y", "low", "high", "smooth"))
