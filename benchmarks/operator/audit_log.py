"""The requests of one user in the API server's audit log: when each arrived, and for which object."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - {level: Metadata, users: ["system:serviceaccount:kube-system:subject"]}
  - {level: None}
"""


@dataclass(frozen=True, slots=True)
class Request:
    """`at` is Unix seconds when it arrived; `resource` has the subresource after a slash."""

    at: float
    verb: str
    resource: str
    namespace: str
    name: str
    code: int

    @property
    def writes(self) -> bool:
        return self.verb in ("create", "update", "patch", "delete") and self.resource != "leases"


class AuditLog:
    """Read on from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0
        self.requests: list[Request] = []

    def read(self) -> list[Request]:
        """All requests so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self.requests.append(_request(json.loads(line)))
        return self.requests

    def since(self, at: float) -> list[Request]:
        """Requests that came after this moment."""
        return [request for request in self.read() if request.at >= at]

    def quiet_for(self) -> float:
        """Seconds since the last request that was not a watch or a lease."""
        times = [
            request.at for request in self.read()[-2000:] if request.verb != "watch" and request.resource != "leases"
        ]
        return time.time() - max(times, default=0.0)


def by_verb(requests: list[Request]) -> Counter[str]:
    """Counts of `create pods` and the like, errors apart."""
    return Counter(
        f"{request.verb} {request.resource}" + (f" {request.code}" if request.code >= 400 else "")
        for request in requests
    )


def _request(entry: dict) -> Request:  # type: ignore[type-arg]
    about = entry.get("objectRef") or {}
    resource = about.get("resource", entry.get("requestURI", "").partition("?")[0])
    if "subresource" in about:
        resource += f"/{about['subresource']}"
    return Request(
        at=datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp(),
        verb=entry["verb"],
        resource=resource,
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=(entry.get("responseStatus") or {}).get("code", 0),
    )
