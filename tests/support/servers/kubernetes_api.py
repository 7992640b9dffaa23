"""Kubernetes' HTTP API as tests use it: paths in, mappings out, refusals as one exception."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from patience import patient

Object = dict[str, Any]

_PATCHES: Final = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
# An API server that has just started answers 429 until it has read what it stores.
_BUSY_SECONDS: Final = 30


class Refused(Exception):
    """The API server answered with an error: its code, its reason (`NotFound`, ...), and its sentence."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message


class KubernetesApi:
    """One connection pool to an API server; safe to share between threads."""

    def __init__(self, server: str, token: str | None = None, ca: Path | None = None) -> None:
        self.server = server
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = urllib3.PoolManager(maxsize=8, retries=False, ca_certs=str(ca) if ca else None)

    def get(self, path: str, **query: Any) -> Any:
        """An object, or a list of them."""
        return self._call("GET", path, query=query)

    def text(self, path: str) -> str:
        """What is not JSON: logs, /metrics, /readyz."""
        return self._answer("GET", path, None, None, {}).data.decode()

    def items(self, path: str, **query: Any) -> list[Object]:
        """The objects of a list."""
        found: list[Object] = self.get(path, **query)["items"]
        return found

    def create(self, path: str, content: Object | bytes, **query: Any) -> Any:
        """POST to a collection; bytes as they are."""
        return self._call("POST", path, content, query=query)

    def replace(self, path: str, content: Object) -> Any:
        """PUT."""
        return self._call("PUT", path, content)

    def patch(self, path: str, content: Any, kind: str = "merge", **query: Any) -> Any:
        """Merge patch, or of another kind: json, strategic."""
        return self._call("PATCH", path, content, _PATCHES[kind], query)

    def apply(self, path: str, content: Object, manager: str = "tests") -> Any:
        """Server-side apply to the path of one object."""
        return self.patch(path, content, "apply", fieldManager=manager, force="true")

    def delete(self, path: str, **options: Any) -> Any:
        """DELETE with these options, such as `gracePeriodSeconds=0`."""
        return self._call("DELETE", path, options or None)

    def watch(self, path: str, seconds: int, *, metadata_only: bool = False, **query: Any) -> Iterator[Object]:
        """Events until the API server ends the watch after so many seconds."""
        query |= {"watch": "true", "timeoutSeconds": seconds}
        accept = _METADATA_ONLY if metadata_only else "application/json"
        answer = self._answer("GET", path, None, None, query, stream=True, accept=accept)
        rest = b""
        for chunk in answer.stream(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (json.loads(line) for line in lines if line)

    def _call(
        self, method: str, path: str, content: Any = None, kind: str | None = None, query: dict[str, Any] | None = None
    ) -> Any:
        return json.loads(self._answer(method, path, content, kind, query or {}).data)

    def _answer(
        self,
        method: str,
        path: str,
        content: Any,
        kind: str | None,
        query: dict[str, Any],
        stream: bool = False,
        accept: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        deadline = time.monotonic() + patient(_BUSY_SECONDS)
        while True:
            answer = self._pool.request(
                method,
                self.server + path + ("?" + urlencode(query) if query else ""),
                body=content if content is None or isinstance(content, bytes) else json.dumps(content),
                headers=self._headers | {"Accept": accept, "Content-Type": kind or "application/json"},
                timeout=urllib3.Timeout(connect=patient(5), read=None if stream else patient(30)),
                preload_content=not stream,
            )
            if answer.status < 400:
                return answer
            refusal = _refusal(answer)
            if refusal.code != 429 or time.monotonic() > deadline:
                raise refusal
            time.sleep(0.1)


def _refusal(answer: urllib3.BaseHTTPResponse) -> Refused:
    try:
        status = json.loads(answer.data)
    except ValueError:
        return Refused(answer.status, "", answer.data.decode(errors="replace"))
    return Refused(answer.status, status.get("reason", ""), status.get("message", ""))
