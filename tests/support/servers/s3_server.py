"""An S3 server that a test starts: one program with a folder of its own and keys that may do everything."""

import secrets
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlencode

import urllib3
from minio import Minio
from minio.error import MinioException

from servers.ports import free_port
from servers.process import Process

READY_SECONDS: Final = 60.0


class S3Server(ABC):
    """`url(bucket)` with `environment` opens a store in it. Data are lost when it is closed."""

    name: ClassVar[str]
    region = "us-east-1"

    def __init__(self, secret_key: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"dapo-{self.name}-"))
        self.keys = "dapo-test-root", secret_key or secrets.token_hex(32)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.certificate = self.certify()
        secure = self.certificate is not None
        self.endpoint = f"{'https' if secure else 'http'}://{self.address}"
        self.process = Process(self.name, self.command(), self.folder / "log", self.settings())
        # A MinIO that starts sometimes never answers a request that came too early.
        authority = str(self.certificate) if secure else None
        self.http = urllib3.PoolManager(ca_certs=authority, retries=False, timeout=10.0)
        self.client = Minio(self.address, *self.keys, secure=secure, region=self.region, http_client=self.http)
        self.start()

    @abstractmethod
    def command(self) -> list[str]: ...

    def certify(self) -> Path | None:
        """Make the server's certificate in its folder; None for one that is served without TLS."""
        return None

    def settings(self) -> dict[str, str]:
        return {"HOME": str(self.folder)}

    def start(self) -> None:
        self.process.start()
        try:
            self.process.wait_until(self._ready, READY_SECONDS)
        except BaseException:
            self.process.kill()
            raise

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.client.make_bucket(name)
        return name

    def url(self, bucket: str, prefix: str = "runs", endpoint: str | None = None, **more: str) -> str:
        """Of a prefix of a bucket; `endpoint` when something stands before the server."""
        region = {} if self.region == "us-east-1" else {"region": self.region}
        query = {"endpoint": endpoint or self.endpoint, **region, **more}
        return f"s3://{bucket}/{prefix}?" + urlencode(query, safe=":/")

    @property
    def environment(self) -> dict[str, str]:
        """Keys that may do everything, and the authority of the certificate."""
        return self.environment_of(*self.keys)

    def environment_of(self, access_key: str, secret_key: str) -> dict[str, str]:
        authority = {"DAPO_S3_CA_FILE": str(self.certificate)} if self.certificate else {}
        return {"DAPO_S3_ACCESS_KEY": access_key, "DAPO_S3_SECRET_KEY": secret_key} | authority

    def _ready(self) -> bool:
        with suppress(urllib3.exceptions.HTTPError, MinioException):
            self.client.list_buckets()
            return True
        return False
