"""Viewers who open a page at once: each speaks Streamlit's protocol to the server and reads until it has everything."""

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from typing import Any, TypeVar

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

T = TypeVar("T")
REFRESHES = 500
WARM_UP = 20


def measure(address: str, query: str, viewers: int) -> dict[str, float]:
    """Seconds until the server has sent a viewer the whole page."""
    took = _run(_all(_stream(address), query, viewers))
    return {
        f"{viewers} viewers at once: p50, s": quantiles(took, n=100)[49],
        f"{viewers} viewers at once: p95, s": quantiles(took, n=100)[94],
    }


def points_sent(address: str, query: str) -> int:
    """Points of all curves that one viewer receives to draw."""
    return _run(_one(_stream(address), query))[1]


def quiet(address: str, pages: Mapping[str, tuple[str, str]], refreshes: int = REFRESHES) -> dict[str, float]:
    """What a viewer whose page refreshes itself costs while nothing happens: the server's milliseconds of processor and
    the bytes sent for a refresh, and how many elements were sent in all of them. `pages` are names and queries."""
    server = server_of(address)
    figures: dict[str, float] = {}
    for name, (page, query) in pages.items():
        used, size, elements = _run(_refreshed(_stream(address), page, query, refreshes, server))
        figures |= {
            f"{name}, a refresh without anything new: server's processor, ms": 1000 * used / refreshes,
            f"{name}, a refresh without anything new: bytes sent": size / refreshes,
            f"{name}, {refreshes} refreshes without anything new: elements sent": float(elements),
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


async def _refreshed(url: str, page: str, query: str, refreshes: int, server: psutil.Process) -> tuple[float, int, int]:
    """Seconds of the server's processor, bytes and elements of so many refreshes, each asked for as a browser does: by
    the part of the page that said it wants to be run again."""
    async with connect(url, subprotocols=["streamlit"], max_size=None) as socket:  # type: ignore[list-item]
        message = BackMsg()
        message.rerun_script.query_string = query
        message.rerun_script.page_name = page
        await socket.send(message.SerializeToString())
        answers = await _until_finished(socket)
        parts = [answer.auto_rerun.fragment_id for answer in answers if answer.WhichOneof("type") == "auto_rerun"]
        script = next(answer.new_session.page_script_hash for answer in answers if answer.HasField("new_session"))
        message.rerun_script.fragment_id = parts[-1]
        message.rerun_script.page_script_hash = script
        message.rerun_script.is_auto_rerun = True
        before, size, elements = 0.0, 0, 0
        for turn in range(WARM_UP + refreshes):
            if turn == WARM_UP:  # what is made once is made by then
                before = sum(server.cpu_times()[:2])
            await socket.send(message.SerializeToString())
            answers = await _until_finished(socket)
            if turn >= WARM_UP:
                size += sum(answer.ByteSize() for answer in answers)
                elements += sum(answer.delta.WhichOneof("type") == "new_element" for answer in answers)
        return sum(server.cpu_times()[:2]) - before, size, elements


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
