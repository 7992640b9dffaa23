"""The line between the driver and its job's pods."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Literal

import pytest
from patience import patient

from dapo_core.addresses import every_interface
from dapo_trainer.pod.gate import Gate, GateConnection, proof


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret of the job")


@pytest.fixture
def left() -> list[str]:
    """Pods that said they have to go."""
    return []


@pytest.fixture(params=["127.0.0.1", every_interface()], ids=["IPv4", "both families"])
def gate(left: list[str], request: pytest.FixtureRequest) -> Iterator[Gate]:
    gate = Gate(request.param, lambda pod, role: left.append(f"{role} {pod}".strip()), port=0)
    yield gate
    gate.close(done=False)


def wait_for(holds: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + patient(seconds)
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pod_that_has_to_go_says_so(gate: Gate, left: list[str]) -> None:
    with closing(GateConnection("127.0.0.1", "rollout-1", gate.port)) as line:
        line.leaving("rollout-1", "rollout")
        wait_for(lambda: left == ["rollout rollout-1"])
        assert line.end is None


@pytest.mark.parametrize(("done", "end"), [(True, "done"), (False, "lost")], ids=["finished", "failed"])
def test_pods_learn_how_the_driver_ended(gate: Gate, done: bool, end: str) -> None:
    lines = [GateConnection("127.0.0.1", "rollout-1", gate.port) for _ in range(3)]
    gate.close(done=done)
    wait_for(lambda: [line.end for line in lines] == [end] * 3)
    lines[0].leaving("rollout-1", "rollout")  # nobody listens any more, which is no error


@pytest.mark.parametrize("end", ["drained", "dismissed"])
def test_a_pod_is_told_that_it_may_end(gate: Gate, end: Literal["drained", "dismissed"]) -> None:
    with closing(GateConnection("127.0.0.1", "rollout-0", gate.port)) as other:
        told = GateConnection("127.0.0.1", "rollout-1", gate.port)
        gate.tell("rollout-1", end)
        gate.tell("one that is gone", end)
        wait_for(lambda: told.end == end)
        assert other.end is None


def test_before_the_gate_opens_nobody_answers(gate: Gate) -> None:
    gate.close(done=False)
    with pytest.raises(OSError):
        GateConnection("127.0.0.1", "rollout-1", gate.port)


def test_a_stranger_is_turned_away(gate: Gate, left: list[str]) -> None:
    [nonce] = said_by(gate, b'{"nonce": "1", "proof": "guessed"}\n{"leaving": "rollout-0"}\n')
    assert nonce.keys() == {"nonce"} and left == []


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\xfe\n", b"x" * 10_000 + b"\n",
             b'{"proof": 1}\n', b'{"nonce": "\\ud800", "proof": "\\ud800"}\n', b"[" * 4000 + b"\n"],
    ids=["nothing", "a browser", "no mapping", "no text", "too much", "a number", "half a character", "brackets"],
)  # fmt: skip
def test_nonsense_is_turned_away(gate: Gate, said: bytes) -> None:
    assert all(line.keys() == {"nonce"} for line in said_by(gate, said))
    with closing(GateConnection("127.0.0.1", "rollout-1", gate.port)) as line:
        assert line.end is None


def said_by(gate: Gate, said: bytes) -> list[dict[str, str]]:
    """What a stranger hears. The gate may hang up in the middle of what is said."""
    heard = b""
    with closing(socket.create_connection(("127.0.0.1", gate.port))) as stranger, suppress(OSError):
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        while more := stranger.recv(4096):
            heard += more
    return [json.loads(line) for line in heard.splitlines()]


def test_doubt_1_neither_end_of_the_gate_learns_the_token(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of another job listens at the driver's address: it hears no token, and cannot answer for the driver."""
    with closing(socket.create_server(("127.0.0.1", 0))) as impostor:
        heard: list[bytes] = []

        def listen() -> None:
            connection, _ = impostor.accept()
            with closing(connection), connection.makefile("rwb") as stream:
                stream.write(b'{"nonce": "0"}\n')
                stream.flush()
                heard.append(stream.readline())
                stream.write(b'{"welcome": "' + json.loads(heard[0])["proof"].encode() + b'"}\n')

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with pytest.raises(ConnectionError, match="is not this job's driver"):
            GateConnection("127.0.0.1", "rollout-1", impostor.getsockname()[1])
        thread.join(patient(10))
    assert b"a secret of the job" not in heard[0]


def test_doubt_1_a_proof_is_of_one_connection(gate: Gate, left: list[str]) -> None:
    with closing(socket.create_connection(("127.0.0.1", gate.port))) as first, first.makefile("rwb") as stream:
        nonce = json.loads(stream.readline())["nonce"]
        hello = json.dumps({"nonce": "1", "proof": proof("pod", (nonce, "1"))}).encode() + b"\n"
        stream.write(hello)
        stream.flush()
        assert "welcome" in json.loads(stream.readline())
    [heard] = said_by(gate, hello + b'{"leaving": "rollout-0"}\n')
    assert heard.keys() == {"nonce"} and left == []
