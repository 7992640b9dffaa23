"""Local receivers of alerts: an HTTP server whose answers a test sets, and an SMTP server that keeps what it gets."""

import base64
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Post:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class WebReceiver:
    """`answers`: the status of each request in turn, then 200; `headers` come with all of them."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    posts: list[Post] = field(default_factory=list)


@contextmanager
def web_receiver() -> Iterator[WebReceiver]:
    receiver = WebReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.posts.append(Post(self.path, dict(self.headers), json.loads(content)))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        receiver.url = f"http://127.0.0.1:{port}"
        yield receiver


@dataclass
class MailReceiver:
    """`tls`: with a certificate, STARTTLS is offered. `refused`: addresses that are not taken. `logins`: user and
    password of each."""

    port: int = 0
    tls: ssl.SSLContext | None = None
    busy: int = 0
    refused: set[str] = field(default_factory=set)
    logins: list[tuple[str, str]] = field(default_factory=list)
    mails: list[tuple[list[str], EmailMessage]] = field(default_factory=list)


@contextmanager
def mail_receiver(tls: ssl.SSLContext | None = None) -> Iterator[MailReceiver]:
    receiver = MailReceiver(tls=tls)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 local")
            to: list[str] = []
            while line := self.rfile.readline().decode().strip():
                verb = line.split()[0].upper()
                if verb == "EHLO":
                    self.say("250-local", *(["250-STARTTLS"] if tls is not None else []), "250 AUTH PLAIN")
                elif verb == "STARTTLS" and tls is not None:
                    self.say("220 go")
                    try:
                        self.request = tls.wrap_socket(self.request, server_side=True)
                    except ssl.SSLError:  # the client does not trust the certificate
                        return
                    self.rfile.close()
                    self.wfile.close()
                    self.setup()
                elif verb == "AUTH":
                    _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                    receiver.logins.append((user, password))
                    self.say("235 welcome")
                elif verb == "MAIL" and receiver.busy > 0:
                    receiver.busy -= 1
                    self.say("451 busy")
                elif verb == "RCPT":
                    address = line.partition("<")[2].partition(">")[0]
                    if address in receiver.refused:
                        self.say("550 unknown")
                    else:
                        to.append(address)
                        self.say("250 ok")
                elif verb == "DATA":
                    self.say("354 go")
                    receiver.mails.append((to, message_from_bytes(self.content(), policy=default)))
                    to = []
                    self.say("250 ok")
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")

        def finish(self) -> None:
            super().finish()
            self.request.close()  # the server closes only the socket that it accepted

        def content(self) -> bytes:
            lines = []
            while (line := self.rfile.readline()) != b".\r\n":
                lines.append(line.removeprefix(b"."))
            return b"".join(lines)

        def say(self, *lines: str) -> None:
            self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with _running(Server(("127.0.0.1", 0), Handler)) as port:
        receiver.port = port
        yield receiver


@contextmanager
def _running(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
