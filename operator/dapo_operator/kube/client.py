"""The only module that sends requests to the Kubernetes API: the official client's requests, without its model classes.
Every call may raise an `ApiError`.

It adds the middlewares (fence, rate limit, metrics), the API server's clock, lists and watches of metadata only, and
parsers that whatever a tenant has put into an object cannot stop.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config import ConfigException

from dapo_core.backoff import Backoff
from dapo_operator.kube.connection import Connection
from dapo_operator.kube.nesting import PrunedResponse, lines_of, parse
from dapo_operator.kube.objects import (
    PODS,
    ApiError,
    BusyError,
    Object,
    Resource,
    StreamCutError,
    UnreachableError,
    error_of,
)
from dapo_operator.kube.rate_limit import TIMEOUT_SECONDS

# The objects of a list or a part of it, and its resource version.
Page = tuple[list[Object], str]

FIELD_MANAGER: Final = "dapo-operator"
# Bookmarks arrive every minute: a stream that is silent for longer is dead, even if its socket is open.
SILENCE_SECONDS: Final = 90
WATCH_SECONDS: Final = 290
PAGE: Final = 200
BUSY_TRIES: Final = 6
BUSY: Final = Backoff(1.0, 5.0)
_EXEC_PROTOCOL: Final = "v4.channel.k8s.io"
_ENDED: Final = 3
# Of what a command prints, and of how it ended: who runs the container decides how much that is.
_KEPT: Final = 8 * 1024
_METADATA: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


class KubeClient:
    """The one client of the API server, for Kopf's watch as well: the middlewares see all requests."""

    def __init__(self, connection: Connection, middlewares: Sequence[aiohttp.ClientMiddlewareType] = ()) -> None:
        self.connection = connection
        self._ahead = 0.0
        self._configuration = connection.configuration
        self._api = ApiClient(self._configuration)
        self._connector = aiohttp.TCPConnector(limit=0, ssl=self._api.rest_client.ssl_context)
        self._options: dict[str, Any] = {
            "connector": self._connector,
            "connector_owner": False,
            "headers": {"User-Agent": FIELD_MANAGER},
            "middlewares": (*middlewares, self._authorize),
            "proxy": self._configuration.proxy,
            "timeout": aiohttp.ClientTimeout(total=None),
            # `connect` has found the proxy; aiohttp would look for it, and for a netrc, at every request.
            "trust_env": False,
        }
        self._configuration.client_session_kwargs = self._options

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._configuration.host

    def open_session(self) -> aiohttp.ClientSession:
        """A session over the same connections, for Kopf, which parses responses and closes the session itself."""
        return aiohttp.ClientSession(**self._options, response_class=PrunedResponse)

    async def close(self) -> None:
        """End all connections."""
        await self._api.close()
        await self._connector.close()

    def now(self) -> float:
        """Unix seconds of the API server's clock, which all replicas share."""
        return time.time() + self._ahead

    async def get(self, resource: Resource, namespace: str, name: str, sub: str = "", **query: str) -> Object:
        """One object, or its subresource. Raises NotFoundError."""
        return await self._ask("GET", resource.path(namespace, name, sub), query=query)

    async def create(self, resource: Resource, body: Object, dry_run: bool = False) -> Object:
        """Create an object and return it; unknown fields in it are errors. Raises ExistsError, RefusedError."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        path = resource.path(body["metadata"]["namespace"])
        return await self._ask("POST", path, body, query=query | ({"dryRun": "All"} if dry_run else {}))

    async def apply(self, resource: Resource, body: Object) -> Object:
        """Server-side apply: create the object, or set the fields that `body` has. Returns the object."""
        meta = body["metadata"]
        path = resource.path(meta["namespace"], meta["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._ask("PATCH", path, body, "application/apply-patch+yaml", query)

    async def apply_status(self, resource: Resource, body: Object) -> Object:
        """Server-side apply of the status: set the fields that `body` has. Raises NotFoundError when there is no such
        object, and ConflictError when there is another one, by `metadata.uid`."""
        meta = body["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        path = resource.path(meta["namespace"], meta["name"], "status")
        return await self._ask("PATCH", path, body, "application/apply-patch+yaml", query)

    async def put_status(self, resource: Resource, body: Object) -> Object:
        """Replace the status. Raises ConflictError when the object changed since `metadata.resourceVersion`."""
        meta = body["metadata"]
        return await self._ask("PUT", resource.path(meta["namespace"], meta["name"], "status"), body)

    async def patch(self, resource: Resource, namespace: str, name: str, change: Object) -> Object:
        """Apply a merge patch and return the object."""
        return await self._ask("PATCH", resource.path(namespace, name), change, "application/merge-patch+json")

    async def delete(
        self, resource: Resource, namespace: str, name: str, uid: str | None = None, grace_seconds: int | None = None
    ) -> Object:
        """Delete an object, only the one with this UID if it is given. Returns the object if it ends gracefully."""
        options: Object = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._ask("DELETE", resource.path(namespace, name), options)

    async def list(
        self, resource: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[list[Object], str]:
        """All objects, read with a quorum, and the resource version from which to watch."""
        items: list[Object] = []
        newest = ""
        async for page, version in self.pages(resource, namespace, labels, metadata_only):
            items += page
            newest = version
        return items, newest

    async def pages(
        self, resource: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> AsyncIterator[Page]:
        """The same in parts of PAGE objects, for callers that keep little of each object."""
        query = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        accept = _METADATA.format("List") if metadata_only else "application/json"
        while True:
            page = await self._ask("GET", resource.path(namespace), query=query, accept=accept)
            yield page["items"] or [], page["metadata"]["resourceVersion"]
            if not (more := page["metadata"].get("continue")):
                return
            query = query | {"continue": more}

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, labels: str = "", metadata_only: bool = False
    ) -> AsyncIterator[tuple[str, Object]]:
        """Events since `version` until the server ends the stream.

        Raises GoneError when the version is too old, StreamCutError when the stream breaks after it was established,
        UnreachableError when it cannot be established or is silent for longer than bookmarks allow.
        """
        established = False
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"timeoutSeconds": str(WATCH_SECONDS)} | ({"labelSelector": labels} if labels else {})
        accept = _METADATA.format("") if metadata_only else "application/json"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS, sock_read=SILENCE_SECONDS)
        try:
            response = await self._send("GET", resource.path(namespace), None, {"Accept": accept}, query, timeout)
            try:
                if response.status >= 400:
                    raise _error(response, await response.read())
                established = True
                # Not the client's own `Watch`: one object whose line is too long or nested too deeply would end it.
                async for line in lines_of(response.response.content):
                    yield _event(line)
            finally:
                response.response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # aiohttp's timeouts are of both kinds; a stream that was silent for too long may never have been one.
            cut = established and not isinstance(error, TimeoutError)
            message = f"The watch of {resource.plural} broke: {str(error) or type(error).__name__}."
            raise (StreamCutError if cut else UnreachableError)(message) from error

    async def log(
        self, namespace: str, pod: str, container: str, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[bytes]:
        """What a container printed, in blocks: all or the last `tail` lines; with `follow` until the container ends.

        Raises RefusedError when it has not started, UnreachableError when the stream breaks.
        """
        query = {"container": container, "follow": str(follow).lower()}
        query |= {} if tail is None else {"tailLines": str(tail)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS)
        try:
            response = await self._send("GET", PODS.path(namespace, pod, "log"), None, {}, query, timeout)
            try:
                if response.status >= 400:
                    raise _error(response, await response.read())
                async for block in response.response.content.iter_any():
                    yield block
            finally:
                response.response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"The log of {pod} broke off: {str(error) or type(error).__name__}.") from error

    async def submit(self, path: str, body: Object) -> Object:
        """POST to a path that is no collection of objects, such as an eviction or a review of access."""
        return await self._ask("POST", path, body)

    async def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str], seconds: float
    ) -> tuple[int, str]:
        """Run a command in a container: its exit code, and the end of what it printed. Raises RefusedError,
        NotFoundError, and UnreachableError when the connection ends before the command, or `seconds` have passed."""
        query = [("container", container), ("stdout", "1"), ("stderr", "1"), *(("command", part) for part in command)]
        path = PODS.path(namespace, pod, "exec")
        printed, verdict = b"", b""
        async with aiohttp.ClientSession(**self._options) as session:
            try:
                url = f"{self.server}{path}?{urlencode(query)}"
                async with (
                    asyncio.timeout(seconds),
                    session.ws_connect(url, protocols=[_EXEC_PROTOCOL]) as socket,
                ):
                    async for message in socket:
                        # The first byte is the number of the channel: 1 and 2 are output, 3 is how it ended.
                        if message.type is aiohttp.WSMsgType.BINARY and message.data:
                            if message.data[0] == _ENDED:
                                verdict = (verdict + message.data[1:])[:_KEPT]
                            else:
                                printed = (printed + message.data[1:])[-_KEPT:]
            except aiohttp.WSServerHandshakeError as error:
                status = {"message": f"exec in {pod} was refused: HTTP {error.status} {error.message}"}
                raise error_of(error.status, status) from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise UnreachableError(f"exec in {pod} broke off: {str(error) or type(error).__name__}.") from error
        return _exit_code(verdict, pod), printed.decode("utf-8", "replace")

    async def _ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
    ) -> Object:
        """One request, repeated while the server answers 429."""
        for tries in range(BUSY_TRIES):
            try:
                return await self._ask_once(method, path, body, content_type, query, accept)
            except BusyError as error:
                if tries == BUSY_TRIES - 1:
                    raise
                await asyncio.sleep((error.retry_after or 0.0) + BUSY.delay(tries + 1, random.random()))
        raise AssertionError("unreachable")

    async def _ask_once(
        self,
        method: str,
        path: str,
        body: Object | None,
        content_type: str,
        query: Mapping[str, str] | None,
        accept: str,
    ) -> Object:
        headers = {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        # No total: it would run while the request waits for its turn.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS, sock_read=TIMEOUT_SECONDS)
        try:
            response = await self._send(method, path, body, headers, query, timeout)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = str(error) or type(error).__name__
            raise UnreachableError(f"The API server did not respond to {method} {path}: {text}.") from error
        self._set_clock(response.headers.get("Date"))
        if response.status >= 400:
            raise _error(response, data)
        parsed: Object = parse(data)
        # They are half of an object, and are not used here.
        parsed.get("metadata", {}).pop("managedFields", None)
        return parsed

    async def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        headers: dict[str, str],
        query: Mapping[str, str] | None,
        timeout: aiohttp.ClientTimeout,
    ) -> RESTResponse:
        url = f"{self.server}{path}?{urlencode(query)}" if query else f"{self.server}{path}"
        return await self._api.call_api(method, url, headers, body, _request_timeout=timeout)

    def _set_clock(self, date: str | None) -> None:
        """Follow the API server's clock when this machine's is clearly off; the header has whole seconds only."""
        if date is None:
            return
        ahead = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
        self._ahead = ahead if abs(ahead) > 2.0 else 0.0

    async def _authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Add the token, which the official client's configuration renews."""
        login: dict[str, str] = {}
        try:
            await self._api.update_params_for_auth(login, [], ["BearerToken"], request.url.path, request.method, None)
        except (ConfigException, OSError, ValueError) as error:
            raise CredentialsError(f"could not renew the token: {error}") from error
        request.headers.update(login)
        # Kopf's requests do not name it themselves.
        request.server_hostname = request.server_hostname or self._configuration.tls_server_name
        return await handler(request)


class CredentialsError(aiohttp.ClientError):
    """The request was not sent: there is no valid token for it."""


def _exit_code(verdict: bytes, pod: str) -> int:
    """Of the Status with which an exec ends."""
    try:
        status = json.loads(verdict)
        if status["status"] == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or []
        return next(int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode")
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        said = verdict.decode("utf-8", "replace") or "no status"
        raise UnreachableError(f"exec in {pod} did not say how it ended: {said}") from error


def _event(line: bytes) -> tuple[str, Object]:
    event = parse(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise error_of(int(status.get("code", 500)), status)
    return event["type"], event["object"]


def _error(response: RESTResponse, data: bytes) -> ApiError:
    try:
        status = json.loads(data)
    except ValueError:
        status = {}
    after = response.headers.get("Retry-After", "")
    return error_of(
        response.status, status if isinstance(status, dict) else {}, float(after) if after.isdecimal() else None
    )
