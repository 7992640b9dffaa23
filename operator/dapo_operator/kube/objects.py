"""What all Kubernetes objects have in common: a resource, an owner, a version and timestamps. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """A resource of the API, such as `v1` `pods`."""

    api_version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", sub: str = "") -> str:
        """The URL path of a collection (of all namespaces when None), an object or its subresource."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{middle}/{self.plural}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


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
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


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
