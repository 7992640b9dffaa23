"""The line between the driver and its job's pods."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from patience import patient

from dapo_trainer.pod.gate import Gate, GateConnection


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret of the job")


@pytest.fixture
def left() -> list[str]:
    """Pods that said they have to go."""
    return []


@pytest.fixture
def gate(left: list[str]) -> Iterator[Gate]:
    gate = Gate("127.0.0.1", left.append, port=0)
    yield gate
    gate.close(done=False)


def wait_for(holds: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + patient(seconds)
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pod_that_has_to_go_says_so(gate: Gate, left: list[str]) -> None:
    with closing(GateConnection("127.0.0.1", gate.port)) as line:
        line.leaving("rollout-1")
        wait_for(lambda: left == ["rollout-1"])
        assert line.end is None


@pytest.mark.parametrize(("done", "end"), [(True, "done"), (False, "lost")], ids=["finished", "failed"])
def test_pods_learn_how_the_driver_ended(gate: Gate, done: bool, end: str) -> None:
    lines = [GateConnection("127.0.0.1", gate.port) for _ in range(3)]
    gate.close(done=done)
    wait_for(lambda: [line.end for line in lines] == [end] * 3)
    lines[0].leaving("rollout-1")  # nobody listens any more, which is no error


def test_before_the_gate_opens_nobody_answers(gate: Gate) -> None:
    gate.close(done=False)
    with pytest.raises(OSError):
        GateConnection("127.0.0.1", gate.port)


def test_a_stranger_is_turned_away(gate: Gate, left: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another job's")
    assert answer(gate, b'{"token": "guessed"}\n{"leaving": "rollout-0"}\n') == b""
    assert left == []


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\xfe\n", b"x" * 10_000 + b"\n"],
    ids=["nothing", "a browser", "no mapping", "no text", "too much"],
)  # fmt: skip
def test_nonsense_is_turned_away(gate: Gate, said: bytes) -> None:
    assert answer(gate, said) == b""
    with closing(GateConnection("127.0.0.1", gate.port)) as line:
        assert line.end is None


def answer(gate: Gate, said: bytes) -> bytes:
    """What a stranger hears. The gate may hang up in the middle of what is said, which is no answer either."""
    with closing(socket.create_connection(("127.0.0.1", gate.port))) as stranger, suppress(OSError):
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        return stranger.recv(100)
    return b""
