"""Assigns each group to the engine with the fewest groups in flight.

A separate Ray actor, as in verl, but without verl's imports: verl's default router keeps the responses of one
conversation on one engine, which groups do not need, and takes seconds to import.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServerName:
    """An engine's server, by the name of its actor.

    Not by its handle: deserializing one imports all that the server's methods mention, which is vLLM.
    """

    actor: str


class GroupRouter:
    """Loaded by verl as `rollout.router_config_path` (group_router.yaml); methods are verl's load balancer contract."""

    def __init__(self, servers: dict[str, Any], _settings: dict[str, Any]) -> None:
        self._servers = dict(servers)
        self._in_flight = dict.fromkeys(servers, 0)

    def require_acquire_fields(self) -> list[str]:
        return []

    def require_release_fields(self) -> list[str]:
        return []

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        if not self._servers:
            raise RuntimeError("No available servers in load balancer")  # verl's client waits on exactly this message
        chosen = min(self._servers, key=lambda server: self._in_flight[server])
        self._in_flight[chosen] += 1
        return chosen, self._servers[chosen]

    def release_server(self, server_id: str) -> None:
        if self._in_flight.get(server_id, 0) > 0:
            self._in_flight[server_id] -= 1

    def acquire_servers(self, count: int) -> list[tuple[str, Any]]:
        """One for each of `count` groups: the same as so many calls of `acquire_server`, in one (group_client)."""
        return [self.acquire_server("") for _ in range(count)]

    def release_servers(self, server_id: str, count: int) -> None:
        """`count` groups of a server are finished."""
        for _ in range(count):
            self.release_server(server_id)

    def add_servers(self, servers: dict[str, Any]) -> None:
        self._servers |= servers
        for server in servers:
            self._in_flight.setdefault(server, 0)

    def remove_servers(self, servers: list[str]) -> None:
        for server in servers:
            self._servers.pop(server, None)
            self._in_flight.pop(server, None)

    def clear_sticky_cache(self) -> dict[str, int]:
        return {}
