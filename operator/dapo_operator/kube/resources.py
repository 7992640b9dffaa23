"""The kinds of objects the operator speaks of, and where the API has them."""

from dataclasses import dataclass
from typing import Final

from dapo_core.naming import API_VERSION, PLURAL


@dataclass(frozen=True)
class Resource:
    """A namespaced kind."""

    api_version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", sub: str = "") -> str:
        """The URL path of a collection (of all namespaces when None), an object or its subresource."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{middle}/{self.plural}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


JOBS: Final = Resource(API_VERSION, PLURAL)
PODS: Final = Resource("v1", "pods")
SECRETS: Final = Resource("v1", "secrets")
EVENTS: Final = Resource("v1", "events")
# Support objects that are watched, by kind.
WATCHED: Final = {
    "Service": Resource("v1", "services"),
    "ConfigMap": Resource("v1", "configmaps"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
}


def resource_of(api_version: str, kind: str) -> Resource:
    """Where objects of this kind are; a PodGroup's API version says which scheduler's it is."""
    return Resource(api_version, "podgroups") if kind == "PodGroup" else WATCHED[kind]
