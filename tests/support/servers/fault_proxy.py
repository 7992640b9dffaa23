"""A proxy between a program and the API server that makes what a bad network and a bad day of the server make.

It ends TLS on both sides, so it can answer in the server's place and cut a watch in the middle. It runs in a thread of
its own; faults are set and taken away from the test's.
"""

import asyncio
import json
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Final, Self

import aiohttp
from aiohttp import web

from servers.kubernetes import Cluster
from servers.ports import free_port

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_MOMENT: Final = 0.3
_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "content-length", "content-encoding"})


@dataclass(frozen=True)
class Seen:
    """One request as it came through; `code` 0 where no answer went back. `at` is Unix seconds."""

    at: float
    method: str
    path: str
    watch: bool
    code: int

    @property
    def writes(self) -> bool:
        """Whether it asked to change anything but the lease."""
        return self.method in WRITES and "/leases" not in self.path


@dataclass(frozen=True)
class Fault:
    """What happens to a request: a delay in seconds, then an answer with `code` in the server's place, or its loss.

    `after`: the server gets the request first, and only its answer is lost or replaced.
    """

    delay: float = 0.0
    code: int | None = None
    retry_after: int | None = None
    lost: bool = False
    after: bool = False


# Which fault befalls a request by method and path, None for none.
Rule = Callable[[str, str], Fault | None]


def every(fault: Fault, method: str = "", path: str = "", times: int | None = None) -> Rule:
    """This fault for the requests of a method whose path contains `path`, so many times."""
    left = [times]

    def rule(asked: str, at: str) -> Fault | None:
        if (method and asked != method) or path not in at or "/leases" in at or left[0] == 0:
            return None
        left[0] = None if left[0] is None else left[0] - 1
        return fault

    return rule


class FaultProxy:
    """Between whoever uses `kubeconfig` and the cluster. A context manager."""

    def __init__(self, cluster: Cluster, name: str = "proxy") -> None:
        self._cluster = cluster
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.kubeconfig: Path = cluster.credentials.write_kubeconfig(cluster.folder / name, self.url)
        self.log: list[Seen] = []
        self.rule: Rule = lambda method, path: None
        self._reachable = threading.Event()
        self._silent = False
        self._expired = 0.0
        # Watches tell everything twice, and what happened within a moment in the wrong order.
        self.stutters = False
        # Seconds by which the server's clock, as its answers tell it, is ahead of this machine's.
        self.skew = 0.0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._open: set[asyncio.Task[object]] = set()
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

    def __enter__(self) -> Self:
        self._reachable.set()
        self._thread.start()
        if not self._ready.wait(30):
            raise RuntimeError("the fault proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def partition(self) -> None:
        """Drops everything in both directions without an error: connections stay open, requests get no response."""
        self._reachable.clear()

    def heal(self) -> None:
        """Everything gets through again; what was lost stays lost, and held connections break."""
        self.rule = lambda method, path: None
        self._silent = self.stutters = False
        if not self._reachable.is_set():
            self._reachable.set()
            self.cut()

    def cut(self) -> None:
        """Break every request that is under way."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._open])

    def silence_watches(self) -> None:
        """Watches stay open and say nothing more, bookmarks neither; other requests work."""
        self._silent = True

    def expire_watches(self) -> None:
        """Answer each watch with 410 (Gone) once: open watches now, silent ones included."""
        self._expired = time.time()
        self._silent = False

    def writes_since(self, at: float) -> list[Seen]:
        """Writes that came after this moment (Unix seconds)."""
        return [seen for seen in list(self.log) if seen.writes and seen.at >= at]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        keys = self._cluster.credentials
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.load_cert_chain(keys.server_certificate, keys.server_key)
        upstream = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=keys.ca), limit=0)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{rest:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        async with aiohttp.ClientSession(
            connector=upstream, timeout=aiohttp.ClientTimeout(total=None)
        ) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=server).start()
            self._ready.set()
            await self._stop.wait()
            for task in self._open:
                task.cancel()
            await runner.cleanup()
        for transport in self._transports:
            transport.abort()  # a client that keeps its connection would have us wait for its goodbye
        await asyncio.sleep(0.1)  # they close in the loop's next turns

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task and request.transport
        self._open.add(task)
        self._transports.add(request.transport)
        watch, begun, code = request.query.get("watch") == "true", time.time(), 0
        try:
            answer = await self._answer(request, watch)
            code = answer.status
            return answer
        except (asyncio.CancelledError, aiohttp.ClientError, OSError):
            # The client sees its connection break, as it would with no proxy between.
            if request.transport:
                request.transport.abort()
            raise asyncio.CancelledError from None  # any other error would be logged as one of the proxy's own
        finally:
            self._open.discard(task)
            self.log.append(Seen(begun, request.method, request.path, watch, code))

    async def _answer(self, request: web.Request, watch: bool) -> web.StreamResponse:
        await self._passage()
        fault = self.rule(request.method, request.path) or Fault()
        await asyncio.sleep(fault.delay)
        if (fault.code or fault.lost) and not fault.after:
            return await self._instead(fault)
        answer = await self._forward(request, watch, fault)
        await self._passage()
        return answer

    async def _instead(self, fault: Fault) -> web.StreamResponse:
        if fault.lost:
            raise ConnectionResetError("lost on the way")
        assert fault.code
        return web.json_response(_status(fault.code), status=fault.code, headers=_patience(fault))

    async def _forward(self, request: web.Request, watch: bool, fault: Fault) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        url = self._cluster.url + request.path_qs
        body = await request.read() or None
        async with self._session.request(request.method, url, data=body, headers=headers) as found:
            if watch and found.status == 200:
                return await self._stream(request, found)
            content = await found.read()
        if fault.code or fault.lost:
            return await self._instead(fault)
        kept = {key: value for key, value in found.headers.items() if key.lower() not in _HOP}
        if self.skew:
            kept["Date"] = formatdate(time.time() + self.skew, usegmt=True)
        return web.Response(status=found.status, body=content, headers=kept)

    async def _stream(self, request: web.Request, found: aiohttp.ClientResponse) -> web.StreamResponse:
        begun = time.time()
        out = web.StreamResponse(status=200, headers={"Content-Type": "application/json"})
        await out.prepare(request)
        reading: asyncio.Task[bytes] | None = None
        rest = b""
        try:
            while self._expired < begun:
                if self.stutters and not reading:
                    await asyncio.sleep(_MOMENT)
                reading = reading or asyncio.create_task(found.content.readany())
                await asyncio.wait((reading,), timeout=0.05)
                if not reading.done():
                    continue
                chunk, reading = reading.result(), None
                if not chunk:
                    return out
                await self._passage()
                if self.stutters or rest:
                    chunk, rest = _stuttered(rest + chunk)
                if not self._silent:
                    await out.write(chunk)
            await out.write(json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n")
            return out
        finally:
            if reading:
                reading.cancel()

    async def _passage(self) -> None:
        while not self._reachable.is_set():
            await asyncio.sleep(0.05)


def _stuttered(events: bytes) -> tuple[bytes, bytes]:
    """Whole lines, each twice and the last one first; and the part of a line that is left."""
    *lines, rest = events.split(b"\n")
    return b"".join(line + b"\n" for line in reversed(lines) for _ in range(2)), rest


def _status(code: int) -> dict[str, object]:
    reasons = {410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
    text = {"reason": reasons.get(code, ""), "message": f"the fault proxy answers {code}"}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, **text}


def _patience(fault: Fault) -> dict[str, str]:
    return {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
