"""The Lease in the API server, and the fence that keeps a replica without it from writing."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp

from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.leadership import Lease, LeaseError
from dapo_operator.kube.objects import LEASES, ApiError, ConflictError, ExistsError, NotFoundError, Object

_READING: Final = frozenset({"GET", "HEAD"})


class KubeLease:
    """A `LeaseStore`: one Lease object."""

    def __init__(self, kube: KubeClient, namespace: str, name: str, now: Callable[[], datetime] | None = None) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name
        self._now = now or (lambda: datetime.now(UTC))
        self._written = ""  # the holder

    async def read(self) -> Lease | None:
        """The lease; None when it does not exist yet."""
        try:
            return lease_of(await self._kube.get(LEASES, self._namespace, self._name))
        except NotFoundError:
            return None
        except ApiError as error:
            raise LeaseError(error.message) from error

    async def write(self, lease: Lease) -> Lease | None:
        """Write and return the lease; None when it changed since `lease.version`."""
        try:
            written = lease_of(await self._send(lease))
            self._written = written.holder
            return written
        except (ConflictError, ExistsError, NotFoundError):
            return None
        except ApiError as error:
            raise LeaseError(error.message) from error

    async def _send(self, lease: Lease) -> Object:
        spec = body_of(lease, self._now(), acquired=lease.holder not in ("", self._written))
        if not lease.version:
            meta = {"name": self._name, "namespace": self._namespace}
            kind = {"apiVersion": LEASES.api_version, "kind": "Lease"}
            return await self._kube.create(LEASES, {**kind, "metadata": meta, "spec": spec})
        # A merge patch that names a version conflicts when that is not the newest.
        change = {"metadata": {"resourceVersion": lease.version}, "spec": spec}
        return await self._kube.patch(LEASES, self._namespace, self._name, change)


def lease_of(raw: Object) -> Lease:
    """What the election needs of a Lease object: the version instead of its times, which are of another clock."""
    spec: dict[str, Any] = raw.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        lasts=float(spec.get("leaseDurationSeconds") or 0),
        transitions=spec.get("leaseTransitions") or 0,
        version=raw["metadata"]["resourceVersion"],
    )


def body_of(lease: Lease, now: datetime, acquired: bool) -> Object:
    """The `spec` of a Lease object, or what changes of it; its times are only for people."""
    at = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "holderIdentity": lease.holder,
        "leaseDurationSeconds": int(lease.lasts),
        "leaseTransitions": lease.transitions,
        "renewTime": at,
        **({"acquireTime": at} if acquired else {}),
    }


class NotLeadingError(aiohttp.ClientError):
    """The request was not sent: another replica may be working."""


class Fence:
    """aiohttp middleware that lets writes pass only while `holds()` is true. The election's own client has none."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send the request, or raise NotLeadingError."""
        if request.method in _READING or self._holds():
            return await handler(request)
        raise NotLeadingError("this replica does not hold the lease")
