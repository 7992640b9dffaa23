"""S3 servers that the tests can start: MinIO, and others by `DAPO_TEST_S3_SERVER` (`make s3-servers` runs each).

What only MinIO has (users, quotas, sessions) is in `servers.minio`; such tests do not run on the others.
"""

import base64
import os
import secrets
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import pytest

from servers.ceph import CephGateway
from servers.ports import free_port
from servers.process import Process
from servers.s3_server import READY_SECONDS, S3Server
from servers.tools import tool

CHOICE: Final = "DAPO_TEST_S3_SERVER"


class VersityGateway(S3Server):
    """Versity's gateway to a folder: objects are files, their tags extended attributes."""

    name = "versitygw"

    def command(self) -> list[str]:
        (self.folder / "data").mkdir()
        return [str(tool("versitygw")), "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder / "data")]

    def settings(self) -> dict[str, str]:
        return super().settings() | {"ROOT_ACCESS_KEY": self.keys[0], "ROOT_SECRET_KEY": self.keys[1]}


class AzureGateway(S3Server):
    """Versity's gateway to Azure's Blob Storage, of which Microsoft's Azurite is a model, in memory."""

    name = "azure"

    def __init__(self) -> None:
        self._account, self._azurite_port = "dapotest", free_port()
        self._account_key = base64.b64encode(secrets.token_bytes(32)).decode()
        self._azurite: Process | None = None
        super().__init__()

    def command(self) -> list[str]:
        storage = f"http://127.0.0.1:{self._azurite_port}/{self._account}"
        gateway = [str(tool("versitygw")), "--port", f"127.0.0.1:{self.port}"]
        return [*gateway, "azure", "--account", self._account, "--url", storage]

    def settings(self) -> dict[str, str]:
        keys = {"ROOT_ACCESS_KEY": self.keys[0], "ROOT_SECRET_KEY": self.keys[1], "AZ_ACCESS_KEY": self._account_key}
        return super().settings() | keys

    def start(self) -> None:
        if self._azurite is None:
            where = ["--blobHost", "127.0.0.1", "--blobPort", str(self._azurite_port)]
            command = [str(tool("azurite")), *where, "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
            account = {"AZURITE_ACCOUNTS": f"{self._account}:{self._account_key}"}
            self._azurite = Process("azurite", command, self.folder / "azurite.log", account)
            self._azurite.start()
            self._azurite.wait_until(self._listens, READY_SECONDS)
        super().start()

    def close(self) -> None:
        if self._azurite is not None:
            self._azurite.kill()
        super().close()

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._azurite_port), timeout=5.0):
            return True
        return False


OTHERS: Final[Mapping[str, Callable[[], S3Server]]] = {
    "versitygw": VersityGateway,
    "azure": AzureGateway,
    "ceph": CephGateway,
}


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """One server for all tests that do not stop it: MinIO, or the one that `DAPO_TEST_S3_SERVER` names."""
    if (name := os.environ.get(CHOICE, "minio")) == "minio":
        yield request.getfixturevalue("minio")
        return
    server = OTHERS[name]()
    yield server
    server.close()


@pytest.fixture
def s3(request: pytest.FixtureRequest) -> tuple[str, Mapping[str, str]]:
    """URL and environment of an empty prefix: of DAPO_TEST_S3_URL with the DAPO_S3_* of this process, or of
    `s3_server`."""
    if outside := os.environ.get("DAPO_TEST_S3_URL"):
        base, _, query = outside.partition("?")
        return f"{base.rstrip('/')}/{uuid.uuid4().hex[:8]}?{query}", os.environ
    server: S3Server = request.getfixturevalue("s3_server")
    return server.url(server.new_bucket()), server.environment
