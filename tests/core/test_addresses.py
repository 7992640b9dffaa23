"""Addresses of both families (B34)."""

import socket

import pytest

from dapo_core import addresses
from dapo_core.addresses import bracketed, every_interface, family_of, host_of, resolved, with_port

V4, V6 = (socket.AF_INET, ("10.0.0.7", 0)), (socket.AF_INET6, ("fd00::7", 0, 0, 0))


@pytest.mark.parametrize(
    ("host", "address", "family"),
    [
        ("10.0.0.7", "10.0.0.7:6379", socket.AF_INET),
        ("fd00::7", "[fd00::7]:6379", socket.AF_INET6),
        ("head.jobs.svc", "head.jobs.svc:6379", socket.AF_INET),
    ],
)
def test_b34_an_address_with_its_port(host: str, address: str, family: int) -> None:
    assert with_port(host, 6379) == address
    assert host_of(address) == host
    assert address.startswith(bracketed(host))
    assert family_of(host) == family


@pytest.mark.parametrize(
    ("found", "expected"),
    [([V4], "10.0.0.7"), ([V6], "fd00::7"), ([V6, V4], "10.0.0.7")],
    ids=["IPv4 only", "IPv6 only", "both"],
)
def test_b34_a_name_has_an_address(
    found: list[tuple[int, tuple[object, ...]]], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(family, socket.SOCK_STREAM, 6, "", address) for family, address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert resolved("pod") == expected


@pytest.mark.parametrize(("dual", "expected"), [(True, "::"), (False, "0.0.0.0")])
def test_b34_every_interface(dual: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses.socket, "has_dualstack_ipv6", lambda: dual)
    assert every_interface() == expected
