"""What the Kubernetes API speaks of: resources, objects with an owner, a version and timestamps; and its errors. Pure.

ApiError
 +- NotFoundError       404: the object is gone, or its kind is not installed
 +- ConflictError       409: the object changed meanwhile, read it again
 +- ExistsError         409: an object of that name exists
 +- RefusedError        400, 403, 422: rejected by quota, admission or validation
 +- GoneError           410: the version to watch from is too old, list again
 +- BusyError           429: too many requests, retry later
 +- UnreachableError    no response, or a 5xx
     +- StreamCutError  an established watch was cut
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """A resource of the API, such as `v1` `pods`."""

    api_version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", sub: str = "") -> str:
        """The URL path of a collection (of all namespaces when None), an object or its subresource. Raises RefusedError
        for what is no name: jobs name objects, and `../../secrets/x` would be another one than they may name."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        middle = f"/namespaces/{_segment(namespace)}" if namespace else ""
        end = f"/{_segment(name)}" if name else ""
        return f"{root}{middle}/{self.plural}{end}" + (f"/{sub}" if sub else "")


def _segment(name: str) -> str:
    """The name as a part of a path. A slash that is escaped is one again for the API server."""
    if name in (".", "..") or "/" in name or "%" in name:
        raise RefusedError(f"{name!r} is not a name: no object can be called that.", 400, "BadRequest")
    return quote(name, safe=":", errors="replace")


PODS: Final = Resource("v1", "pods")
SECRETS: Final = Resource("v1", "secrets")
EVENTS: Final = Resource("v1", "events")
NODES: Final = Resource("v1", "nodes")
LEASES: Final = Resource("coordination.k8s.io/v1", "leases")


@dataclass(frozen=True)
class ObjectReference:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


def controller_uid(raw: Mapping[str, Any]) -> str | None:
    """UID of the object's controller; None when nothing controls it."""
    owners = raw["metadata"].get("ownerReferences", ())
    # One string for all objects of an owner.
    return next((sys.intern(str(owner["uid"])) for owner in owners if owner.get("controller")), None)


def version_of(raw: Mapping[str, Any]) -> int:
    """The resource version as a number: of two states of one object the higher one is newer."""
    return int(raw["metadata"]["resourceVersion"])


def timestamp(seconds: float) -> str:
    """Unix seconds as `2026-11-21T08:00:00Z`: whole seconds, rounded down, so that the text reads back unchanged."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix_seconds(text: str | None) -> float | None:
    """Unix seconds of a timestamp; None for None."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def age(text: str | None, now: float) -> float:
    """Seconds from the timestamp to `now`; 0 for None, and when the clock that wrote it was ahead of this one."""
    at = unix_seconds(text)
    return 0.0 if at is None else max(0.0, now - at)


class ApiError(Exception):
    """Base of all. `code` is the HTTP status, 0 when there was no response; `reason` is that of Kubernetes' Status;
    `retry_after` is in seconds."""

    def __init__(self, message: str, code: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        self.message, self.code, self.reason, self.retry_after = message, code, reason, retry_after
        super().__init__(message)


class NotFoundError(ApiError):
    """404."""


class ConflictError(ApiError):
    """409, a failed optimistic lock."""


class ExistsError(ApiError):
    """409, the name is taken."""


class RefusedError(ApiError):
    """400, 403 or 422."""


class GoneError(ApiError):
    """410."""


class BusyError(ApiError):
    """429."""


class UnreachableError(ApiError):
    """No response, or a server error."""


class StreamCutError(UnreachableError):
    """A watch was cut after it had been established, by a proxy or a restart: the next one continues it."""


_BY_CODE: Mapping[int, type[ApiError]] = {
    400: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: RefusedError,
    429: BusyError,
}


def error_of(code: int, status: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """The error for a response with this HTTP status and this Status object."""
    reason, message = str(status.get("reason", "")), str(status.get("message", "")) or f"HTTP {code}"
    kind = (
        ExistsError if reason == "AlreadyExists" else _BY_CODE.get(code, UnreachableError if code >= 500 else ApiError)
    )
    return kind(message, code, reason, retry_after)
