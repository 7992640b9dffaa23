"""The line between the driver and the other pods of its job.

Ray alone does not say when a cluster may be joined, why it ended, or that one of its nodes is being terminated. So the
driver opens a gate once its own services are placed (on the head, whose disk a checkpoint is saved from); a pod
connects before it joins and stays connected. It sends `leaving`, with its role, when it is being terminated; the driver
answers a rollout pod with `drained` once its engines have handed over, sends `dismissed` to one whose engines do not
live, and `done` when it has finished. Each line is JSON. First both ends prove that they have the job's Ray token,
which is not sent: whoever listens at the driver's address, or connects to it, may be anybody.
"""

import contextlib
import hmac
import json
import os
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from dapo_core.addresses import family_of

PORT: Final = 6380
CONNECT_SECONDS: Final = 5.0
# How long closing may take; the server looks that often whether it has to.
CLOSE_SECONDS: Final = 0.1
# A peer whose machine is gone is noticed after idle + count x interval seconds.
KEEPALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}

End = Literal["done", "lost", "drained", "dismissed"]
# Of the driver's messages, those that end the connection.
_ENDS: Final[tuple[End, ...]] = ("done", "drained", "dismissed")


def token() -> str:
    """The job's secret, which Ray's processes share; empty where there is none (one machine)."""
    return os.environ.get("RAY_AUTH_TOKEN", "")


def proof(end: Literal["driver", "pod"], nonces: tuple[str, str]) -> str:
    """What only a process with the job's token can say: for the numbers of this connection, the driver's first."""
    return hmac.new(token().encode(), json.dumps((end, *nonces)).encode(), "sha256").hexdigest()


class _GateServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], on_leaving: Callable[[str, str], None]) -> None:
        self.address_family = family_of(address[0])
        super().__init__(address, _Visitor)
        self.on_leaving = on_leaving
        self.inside: dict[socket.socket, str] = {}  # connected pods' names


class _Visitor(socketserver.StreamRequestHandler):
    """One connected pod."""

    server: _GateServer
    timeout = CONNECT_SECONDS  # until it has proved whose it is

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # it disconnected, or said nothing
            if self._admit():
                for line in self.rfile:
                    said = _read(line)
                    if pod := said.get("leaving"):
                        self.server.on_leaving(str(pod), str(said.get("role", "")))

    def _admit(self) -> bool:
        own = secrets.token_hex(16)
        self.wfile.write(_line({"nonce": own}))
        hello = _read(self.rfile.readline(4096))
        nonces = (own, str(hello.get("nonce")))
        if not _is(hello.get("proof"), proof("pod", nonces)):
            return False
        self.connection.settimeout(None)
        _keep_alive(self.connection)
        self.server.inside[self.connection] = str(hello.get("pod", ""))
        self.wfile.write(_line({"welcome": proof("driver", nonces)}))
        return True

    def finish(self) -> None:
        self.server.inside.pop(self.connection, None)


class Gate:
    """The driver's end. `on_leaving(pod, role)` is called in a thread of its own for each pod that is terminated."""

    def __init__(self, host: str, on_leaving: Callable[[str, str], None], port: int = PORT) -> None:
        self._server = _GateServer((host, port), on_leaving)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(CLOSE_SECONDS,), name="gate", daemon=True).start()

    def tell(self, pod: str, end: Literal["drained", "dismissed"]) -> None:
        """Let a pod end: its engines have handed over, or do not live there. One that is gone is no error."""
        for connection, name in list(self._server.inside.items()):
            if name == pod:
                with contextlib.suppress(OSError):
                    connection.sendall(_line({end: True}))

    def close(self, *, done: bool) -> None:
        """Send `done` to the connected pods if the job is, and disconnect them."""
        for connection in list(self._server.inside):
            try:
                if done:
                    connection.sendall(_line({"done": True}))
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # it disconnected first
                continue
        self._server.shutdown()
        self._server.server_close()


class GateConnection:
    """A pod's end. Raises OSError when the driver does not listen, or is another job's."""

    def __init__(self, host: str, pod: str, port: int = PORT) -> None:
        self._socket = socket.create_connection((host, port), CONNECT_SECONDS)
        self._answers = self._socket.makefile("rb")
        self._end: End | None = None
        try:
            nonces = (str(_read(self._answers.readline(4096)).get("nonce")), secrets.token_hex(16))
            self._send({"nonce": nonces[1], "proof": proof("pod", nonces), "pod": pod})
            if not _is(_read(self._answers.readline(4096)).get("welcome"), proof("driver", nonces)):
                raise ConnectionError(f"{host}:{port} is not this job's driver")
            self._socket.settimeout(None)
            _keep_alive(self._socket)
        except OSError:
            self._close()
            raise
        self._listener = threading.Thread(target=self._listen, name="gate-line", daemon=True)
        self._listener.start()

    def leaving(self, pod: str, role: str) -> None:
        """This pod is being terminated: the driver stops with a checkpoint, or without this pod's engines."""
        try:
            self._send({"leaving": pod, "role": role})
        except OSError:  # the driver is gone, as `end` says
            return

    @property
    def end(self) -> End | None:
        """How the connection ended; None while it is open."""
        return self._end

    def _send(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(_line(message))

    def _listen(self) -> None:
        end: End = "lost"
        try:
            for line in self._answers:
                said = _read(line)
                end = next((possible for possible in _ENDS if said.get(possible)), end)
                if end != "lost":
                    break
        except OSError:
            pass
        self._close()
        self._end = end

    def close(self) -> None:
        """Disconnect."""
        with contextlib.suppress(OSError):  # the driver disconnected first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._listener.join()

    def _close(self) -> None:
        self._answers.close()
        self._socket.close()


def _is(said: object, expected: str) -> bool:
    return isinstance(said, str) and hmac.compare_digest(said.encode(errors="replace"), expected.encode())


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read(line: bytes) -> Mapping[str, Any]:
    """The message of a line; empty for a line that is not a message."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
