"""Free ports of the loopback device."""

import random
import socket
from typing import Final

# Below the range from which the kernel takes the local ports of connections: between the moment a port is chosen and
# the moment its server listens, no connection of anybody can take it.
_RANGE: Final = range(15_000, 30_000)


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which nobody listens."""
    for port in random.sample(_RANGE, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port in {_RANGE}: too many servers are running")
