"""Stands before an S3 server and does to some requests what bad days do: errors, delays, broken connections."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from patience import patient

CHUNK = 64 * 1024
# A MinIO that starts sometimes never answers a request that came too early. A load balancer gives up sooner than a
# client does (dapo_core.objectstore.s3.TIMEOUT), and so does this.
SERVER_SECONDS = 10.0


@dataclass(frozen=True)
class Fault:
    """What becomes of a request: answered with an error at once, delayed, or its answer cut after some bytes."""

    status: int | None = None
    code: str = "SlowDown"  # of S3's error document; "" sends none
    delay_seconds: float = 0.0
    cut_after: int | None = None


Faults = Callable[[str, str], Fault | None]
"""Asked with method and path (with its query) of every request."""


class S3Proxy:
    """`endpoint` stands for the server's; `requests` are the methods and paths that came, in order."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.faults: Faults = lambda _method, _path: None
        self.requests: list[tuple[str, str]] = []
        self._closing = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                proxy.serve(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: requests are in `requests`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """Pass one request on, with its fault."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.requests.append((request.command, request.path))
        fault = self.faults(request.command, request.path) or Fault()
        self._closing.wait(fault.delay_seconds)
        with suppress(ConnectionError):
            if fault.status is not None:
                _refuse(request, fault)
            else:
                self._pass_on(request, body, fault)

    def _pass_on(self, request: BaseHTTPRequestHandler, body: bytes, fault: Fault) -> None:
        server = http.client.HTTPConnection(
            str(self.target.hostname), self.target.port, timeout=patient(SERVER_SECONDS)
        )
        try:
            # Headers as they are: the host is a part of what was signed.
            server.request(request.command, request.path, body, dict(request.headers))
            answer = server.getresponse()
            request.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("date", "server"):
                    request.send_header(name, value)
            request.end_headers()
            # Ceph does not know the length of some answers when it begins them.
            is_chunked = "Transfer-Encoding" in answer.headers and request.command != "HEAD"
            left = fault.cut_after
            while chunk := answer.read(CHUNK if left is None else min(CHUNK, left)):
                request.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if is_chunked else chunk)
                left = None if left is None else left - len(chunk)
            if left == 0:
                request.close_connection = True
            elif is_chunked:
                request.wfile.write(b"0\r\n\r\n")
        except (ConnectionError, TimeoutError, http.client.HTTPException):
            request.close_connection = True  # the server went away: so does the connection
        finally:
            server.close()


def _refuse(request: BaseHTTPRequestHandler, fault: Fault) -> None:
    text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>no</Message></Error>" if fault.code else ""
    request.send_response(int(fault.status or 500))
    request.send_header("Content-Type", "application/xml")
    request.send_header("Content-Length", str(len(text)))
    request.end_headers()
    request.wfile.write(text.encode() if request.command != "HEAD" else b"")


@contextmanager
def proxied(target: str) -> Iterator[S3Proxy]:
    proxy = S3Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
