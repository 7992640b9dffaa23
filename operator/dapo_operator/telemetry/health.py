"""Whether the event loop runs and every job is reconciled, and the server of /healthz, /readyz and /metrics. The server
has its own threads, since a hung event loop could not serve them."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from dapo_core.addresses import family_of

Key = tuple[str, str]

BEAT_SECONDS: Final = 1.0
# Any pod that reaches the port can open connections and say nothing on them.
MOST_CONNECTIONS: Final = 64
_TEXT: Final = "text/plain; charset=utf-8"
Problems = Callable[[], Sequence[str]]


class Health:
    """Times are seconds of `clock`. Values are only ever replaced, so a thread may read them while the loop writes.

    Jobs are reconciled in the order in which they were woken. After a thousand at once the last one may wait for
    minutes, which is fine: the faults are a queue that does not move, and a job that is skipped.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stalled_after: float = 30.0, waiting_after: float = 300.0
    ) -> None:
        self._clock, self._stalled_after, self._waiting_after = clock, stalled_after, waiting_after
        self._beat = clock()
        self._woken_at: dict[Key, float] = {}
        self._moved = clock()
        self._reached = clock()

    async def run(self) -> None:
        """Beat until cancelled, on the loop that is watched."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def beat(self) -> None:
        """The loop runs."""
        self._beat = self._clock()

    def woken(self, key: Key) -> None:
        """The job has changed and has to be reconciled."""
        self._woken_at.setdefault(key, self._clock())

    def reconciling(self, key: Key) -> float | None:
        """The job is reconciled now. Returns the seconds since it was first woken; None when it was not."""
        since = self._woken_at.pop(key, None)
        if since is None:
            return None
        self._moved, self._reached = self._clock(), max(self._reached, since)
        return self._moved - since

    @property
    def waiting(self) -> int:
        """Jobs that were woken and not reconciled yet."""
        return len(self._woken_at)

    def problems(self) -> list[str]:
        """Sentences about what is wrong; empty when nothing is."""
        now = self._clock()
        problems = []
        if (silent := now - self._beat) > self._stalled_after:
            problems.append(f"The event loop has not run for {silent:.0f} s.")
        first = min(self._woken_at.copy().values(), default=now)
        if (still := now - max(self._moved, first)) > self._waiting_after:
            problems.append(f"Jobs are waiting, and none has been reconciled for {still:.0f} s.")
        elif self._reached - first > self._waiting_after:
            problems.append(f"A job has been waiting for {now - first:.0f} s, while later ones were reconciled.")
        return problems


class _BoundedServer(ThreadingHTTPServer):
    """Each connection has a thread, so there are at most MOST_CONNECTIONS: a further one ends the oldest, which is
    no probe's."""

    daemon_threads = True
    # Five by default: a probe that comes with a burst would wait seconds for its connection.
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = family_of(address[0])
        super().__init__(address, handler)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                with contextlib.suppress(OSError):  # it disconnected first
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the operator's."""


class TelemetryServer:
    """Listens from `start` to `stop`. `problems` and `unready` return what is wrong; they run in its threads."""

    def __init__(
        self, address: str, port: int, registry: CollectorRegistry, problems: Problems, unready: Problems = tuple
    ) -> None:
        handler = type("Handler", (_Handler,), {"registry": registry, "problems": problems, "unready": unready})
        self._server = _BoundedServer((address, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="telemetry", daemon=True)

    @property
    def port(self) -> int:
        """The port; the one that the system chose when it was given as 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    problems: Problems
    unready: Problems
    timeout = 10

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                self._respond(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)
            case "/healthz":
                self._report(type(self).problems())
            case "/readyz":
                self._report([*type(self).problems(), *type(self).unready()])
            case _:
                self._respond(404, b"Not found: use /metrics, /healthz or /readyz.\n", _TEXT)

    def _report(self, problems: Sequence[str]) -> None:
        self._respond(503 if problems else 200, ("\n".join(problems) or "ok").encode() + b"\n", _TEXT)

    def _respond(self, code: int, body: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not worth a line every few seconds."""
