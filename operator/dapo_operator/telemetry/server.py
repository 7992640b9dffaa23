"""/metrics, /healthz and /readyz, served by threads: a loop that hangs can not answer for itself."""

import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

_TEXT: Final = "text/plain; charset=utf-8"
Ailments = Callable[[], Sequence[str]]


class TelemetryServer:
    """Listens from `start` to `stop`. `ailments` and `unready` say what is wrong; they run in its threads."""

    def __init__(
        self, address: str, port: int, registry: CollectorRegistry, ailments: Ailments, unready: Ailments = tuple
    ) -> None:
        handler = type("Handler", (_Handler,), {"registry": registry, "ailments": ailments, "unready": unready})
        self._server = ThreadingHTTPServer((address, port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="telemetry", daemon=True)

    @property
    def port(self) -> int:
        """The port, also where it was asked for as 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve in the background."""
        self._thread.start()

    def stop(self) -> None:
        """End, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    ailments: Ailments
    unready: Ailments
    timeout = 10

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)
            case "/healthz":
                self._verdict(type(self).ailments())
            case "/readyz":
                self._verdict([*type(self).ailments(), *type(self).unready()])
            case _:
                self._answer(404, b"/metrics, /healthz and /readyz are here.\n", _TEXT)

    def _verdict(self, found: Sequence[str]) -> None:
        self._answer(503 if found else 200, ("\n".join(found) or "ok").encode() + b"\n", _TEXT)

    def _answer(self, code: int, body: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not worth a line every few seconds."""
