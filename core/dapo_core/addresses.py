"""Addresses of both families of IP: of this machine, with a port, and to listen on. Reads nothing but the resolver."""

import socket
from typing import Final

ALL_IPV4: Final = "0.0.0.0"
ALL: Final = "::"


def bracketed(host: str) -> str:
    """A host as it stands in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def with_port(host: str, port: int | str) -> str:
    """`host:port`, or `[address]:port` for IPv6."""
    return f"{bracketed(host)}:{port}"


def host_of(address: str) -> str:
    """The host of `host:port`, without brackets."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def family_of(host: str) -> socket.AddressFamily:
    """The family of a literal address to listen on; IPv4 for a name."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def every_interface() -> str:
    """The address to listen on for clients of both families, as far as this machine has them. On Linux, a socket that
    is bound to it accepts IPv4, too."""
    return ALL if socket.has_dualstack_ipv6() else ALL_IPV4


def resolved(name: str) -> str:
    """The first IPv4 address of a name, else its first IPv6 address. Raises OSError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])
