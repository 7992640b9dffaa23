"""Viewers who open a page at once: each speaks Streamlit's protocol to the server and reads until it has everything."""

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from typing import Any, TypeVar

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import connect

T = TypeVar("T")


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
