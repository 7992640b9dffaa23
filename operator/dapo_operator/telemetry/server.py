"""/metrics, /healthz and /readyz, served by threads: a hung event loop could not serve them."""

import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

_TEXT: Final = "text/plain; charset=utf-8"
Problems = Callable[[], Sequence[str]]


class TelemetryServer:
    """Listens from `start` to `stop`. `problems` and `unready` return what is wrong; they run in its threads."""

    def __init__(
        self, address: str, port: int, registry: CollectorRegistry, problems: Problems, unready: Problems = tuple
    ) -> None:
        handler = type("Handler", (_Handler,), {"registry": registry, "problems": problems, "unready": unready})
        self._server = ThreadingHTTPServer((address, port), handler)
        self._server.daemon_threads = True
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
