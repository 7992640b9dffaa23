"""Where the API server is and how to log in: from the pod's service account, else from the kubeconfig."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.kube_config import KubeConfigLoader

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Exec plugins and OIDC logins keep a token until shortly before it expires; a token from a file is read again.
RENEW_SECONDS: Final = 60.0


class NoClusterError(Exception):
    """Neither a service account nor a usable kubeconfig was found."""


@dataclass(frozen=True)
class Connection:
    """The official client's configuration, which renews tokens by itself, and the namespace to use by default."""

    configuration: Configuration
    namespace: str | None = None


async def connect() -> Connection:
    """The connection of this process. Raises NoClusterError."""
    configuration = Configuration()
    try:
        load_incluster_config(configuration)
        namespace = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else None
    except ConfigException:
        namespace = await _from_kubeconfig(configuration)
    configuration.proxy = configuration.proxy or _proxy_of(configuration.host)
    return Connection(configuration, namespace)


async def _from_kubeconfig(configuration: Configuration) -> str | None:
    try:
        loader = await load_kube_config(client_configuration=configuration, persist_config=False)
    except (ConfigException, ValueError, TypeError, OSError, yaml.YAMLError) as error:
        message = f"Found no service account, and no kubeconfig that can be used: {error}"
        raise NoClusterError(f"{message}. Set KUBECONFIG to a valid file.") from error
    # The client declares its type as that of its default.
    configuration.refresh_api_key_hook = _Renewal(loader)  # type: ignore[assignment]
    namespace: str | None = loader.current_context["context"].get("namespace")
    return namespace


class _Renewal:
    """Renews the token of a kubeconfig: the loader itself knows when an exec plugin's or an OIDC token expires."""

    def __init__(self, loader: KubeConfigLoader) -> None:
        self._loader = loader
        self._renewed_at = time.monotonic()

    async def __call__(self, configuration: Configuration) -> None:
        if time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            # Requests that come meanwhile use the token they have.
            self._renewed_at = time.monotonic()
            proxy = configuration.proxy
            await self._loader.load_and_set(configuration)
            configuration.proxy = configuration.proxy or proxy


def _proxy_of(server: str) -> str | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for the API server."""
    url = urlsplit(server)
    return None if proxy_bypass(url.netloc) else getproxies().get(url.scheme)
