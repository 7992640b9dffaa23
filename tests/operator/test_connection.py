"""Logging in to the API server through the official client: service accounts, kubeconfigs, exec plugins and proxies."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config, kube_config

from dapo_operator.kube import connection
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import Connection, NoClusterError, connect
from dapo_operator.kube.objects import PODS, ExistsError, UnreachableError

SERVER = "https://kube.example:6443"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a service account, nor a kubeconfig, nor a proxy."""
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))


def kubeconfig(folder: Path, user: dict[str, Any], server: str = SERVER, **cluster: str) -> None:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me", "namespace": "team-a"}}],
        "clusters": [{"name": "one", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": user}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(content))


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        result = answer(request)
        return result if isinstance(result, web.StreamResponse) else web.json_response(result)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


POD = {"metadata": {"name": "a", "namespace": "n", "uid": "1", "resourceVersion": "1"}}


def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[str], None], between: Any) -> list[str]:
    """The Authorization headers of a request, of one after `between`, and of one of Kopf's."""

    async def ask() -> list[str]:
        seen: list[str] = []

        def answer(request: web.Request) -> object:
            seen.append(request.headers.get("Authorization", ""))
            return POD

        async with serving(answer) as url:
            prepare(url)
            kube = KubeClient(await connect())
            try:
                await kube.get(PODS, "n", "a")
                between(monkeypatch)
                await kube.get(PODS, "n", "a")
                async with kube.open_session() as session, session.get(url):
                    pass
            finally:
                await kube.close()
        return [login.lower() for login in seen]

    return asyncio.run(ask())


def plugin(folder: Path, expires: str) -> dict[str, Any]:
    """An exec plugin that counts its calls, and returns the count as its token."""
    program = (
        "import json, pathlib\n"
        f"file = pathlib.Path({str(folder / 'calls')!r})\n"
        "count = int(file.read_text()) + 1 if file.exists() else 1\n"
        "file.write_text(str(count))\n"
        f"status = {{'token': f'token-{{count}}', 'expirationTimestamp': {expires!r}}}\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
        "'status': status}))\n"
    )
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", program],
        }
    }


@pytest.mark.parametrize(
    ("expires", "expected"),
    [("2020-01-01T00:00:00Z", ["token-1", "token-2"]), ("2099-01-01T00:00:00Z", ["token-1", "token-1"])],
    ids=["expired", "valid"],
)
def test_an_exec_plugins_token_is_renewed_when_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires: str, expected: list[str]
) -> None:
    def prepare(url: str) -> None:
        kubeconfig(tmp_path, plugin(tmp_path, expires), url)

    def a_minute_later(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(connection, "RENEW_SECONDS", 0.0)

    first, second, _ = logins(tmp_path, monkeypatch, prepare, a_minute_later)
    assert [first, second] == [f"bearer {token}" for token in expected]


def test_a_token_file_of_a_kubeconfig_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def later(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(connection, "RENEW_SECONDS", 0.0)
        file.write_text("new")

    seen = logins(tmp_path, monkeypatch, lambda url: kubeconfig(tmp_path, {"tokenFile": str(file)}, url), later)
    assert seen == ["bearer old", "bearer new", "bearer new"]


def test_a_service_accounts_token_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, certificate, namespace = (tmp_path / name for name in ("token", "ca.crt", "namespace"))
    token.write_text("old")
    namespace.write_text("dapo\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate))
    monkeypatch.setattr(connection, "_NAMESPACE_FILE", namespace)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    certificate.write_text("a certificate")
    found = asyncio.run(connect())
    assert (found.configuration.host, found.namespace) == ("https://[::1]:443", "dapo")

    async def header() -> str | None:
        return (await found.configuration.auth_settings())["BearerToken"]["value"]

    assert asyncio.run(header()) == "bearer old"
    token.write_text("new")
    hook = found.configuration.refresh_api_key_hook
    loader = next(cell.cell_contents for cell in getattr(hook, "__closure__", None) or ())
    loader.token_expires_at = loader.token_expires_at.replace(year=2020)
    assert asyncio.run(header()) == "bearer new"


@pytest.mark.parametrize(
    ("environment", "cluster", "expected"),
    [
        ({}, {}, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, {}, "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".example"}, {}, None),
        ({"HTTP_PROXY": "http://proxy:3128"}, {}, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, {"proxy-url": "http://other:8080"}, "http://other:8080"),
    ],
    ids=["none", "environment", "excepted", "of http", "kubeconfig"],
)
def test_the_proxy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    cluster: dict[str, str],
    expected: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    kubeconfig(tmp_path, {"token": "t"}, **cluster)
    found = asyncio.run(connect())
    assert (found.configuration.host, found.configuration.proxy, found.namespace) == (SERVER, expected, "team-a")


def test_requests_pass_the_proxy(tmp_path: Path) -> None:
    async def ask() -> tuple[str, str]:
        through: list[str] = []

        def answer(request: web.Request) -> object:
            through.append(f"{request.method} {request.raw_path}")
            return POD

        async with serving(answer) as proxy:
            kubeconfig(tmp_path, {"token": "t"}, "http://kube.example", **{"proxy-url": proxy})
            kube = KubeClient(await connect())
            try:
                await kube.get(PODS, "n", "a")
                async with kube.open_session() as session, session.get("http://kube.example/version"):
                    pass
            finally:
                await kube.close()
        return through[0], through[1]

    pod = "GET http://kube.example/api/v1/namespaces/n/pods/a"
    assert asyncio.run(ask()) == (pod, "GET http://kube.example/version")


@pytest.mark.parametrize("content", [None, "clusters: []", "- 1", "{"], ids=["absent", "incomplete", "list", "no YAML"])
def test_without_a_cluster_the_error_says_what_to_set(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(NoClusterError, match=r"(?s)no kubeconfig that can be used: .*Set KUBECONFIG"):
        asyncio.run(connect())


def test_a_token_that_cannot_be_renewed_is_an_unreachable_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Configuration) -> None:
        raise OSError("token: no such file")

    async def ask() -> None:
        async with serving(lambda request: POD) as url:
            configuration = Configuration(host=url, api_key={"BearerToken": "t"})
            setattr(configuration, "refresh_api_key_hook", broken)  # noqa: B010  declared without a type
            kube = KubeClient(Connection(configuration))
            try:
                await kube.get(PODS, "n", "a")
            finally:
                await kube.close()

    with pytest.raises(UnreachableError, match="could not renew the token: token: no such file"):
        asyncio.run(ask())


def test_what_the_client_sends_is_what_was_asked(tmp_path: Path) -> None:
    sent: list[tuple[str, str, str, object]] = []

    async def ask() -> None:
        async def handle(request: web.Request) -> web.Response:
            data = await request.read()
            sent.append((request.method, request.path_qs, request.content_type, json.loads(data) if data else None))
            if request.method == "POST":
                return web.json_response({"reason": "AlreadyExists", "message": "it exists"}, status=409)
            return web.json_response(POD | {"metadata": {**POD["metadata"], "managedFields": [{}]}})

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        async with TestServer(app) as server:
            kube = KubeClient(Connection(Configuration(host=str(server.make_url("")).rstrip("/"))))
            try:
                assert await kube.patch(PODS, "n", "a", {"metadata": {"x": None}}) == POD
                await kube.apply(PODS, {"metadata": {"namespace": "n", "name": "a"}})
                await kube.delete(PODS, "n", "a", uid="1", grace_seconds=0)
                with pytest.raises(ExistsError, match="it exists"):
                    await kube.create(PODS, {"metadata": {"namespace": "n", "name": "a"}}, dry_run=True)
            finally:
                await kube.close()

    asyncio.run(ask())
    path, meta = "/api/v1/namespaces/n/pods", {"metadata": {"namespace": "n", "name": "a"}}
    options = {"propagationPolicy": "Background", "preconditions": {"uid": "1"}, "gracePeriodSeconds": 0}
    assert sent == [
        ("PATCH", f"{path}/a", "application/merge-patch+json", {"metadata": {"x": None}}),
        ("PATCH", f"{path}/a?fieldManager=dapo-operator&force=true", "application/apply-patch+yaml", meta),
        ("DELETE", f"{path}/a", "application/json", options),
        (
            "POST",
            f"{path}?fieldManager=dapo-operator&fieldValidation=Strict&dryRun=All",
            "application/json",
            meta,
        ),
    ]
