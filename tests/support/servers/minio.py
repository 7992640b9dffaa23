"""A MinIO server on loopback, of this test run alone: buckets, users, quotas, TLS, an end and a new start."""

import datetime
import ipaddress
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from minio import Minio
from minio.credentials import AssumeRoleProvider, StaticProvider
from minio.error import MinioAdminException, MinioException
from minio.minioadmin import MinioAdmin

from servers.ports import free_port
from servers.process import Process
from servers.tools import tool

ROOT: Final = ("dapo-test-root", "dapo-test-secret")
READY_SECONDS: Final = 60.0


class MinioServer:
    """`url(bucket)` with `environment` opens a store in it. Data are lost when it is closed."""

    def __init__(self, *, tls: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dapo-minio-"))
        self.certificate = _certificate(self.folder / "certs") if tls else None
        address = f"127.0.0.1:{free_port()}"
        self.endpoint = f"{'https' if tls else 'http'}://{address}"
        command = [str(tool("minio")), "server", str(self.folder / "data"), "--address", address, "--quiet"]
        command += ["--certs-dir", str(self.folder / "certs"), "--console-address", f"127.0.0.1:{free_port()}"]
        settings = {
            "MINIO_ROOT_USER": ROOT[0],
            "MINIO_ROOT_PASSWORD": ROOT[1],
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "HOME": str(self.folder),
        }
        self.process = Process("minio", command, self.folder / "minio.log", settings)
        authority = str(self.certificate) if tls else None
        # A MinIO that starts sometimes never answers a request that came too early.
        self.http = urllib3.PoolManager(ca_certs=authority, retries=False, timeout=10.0)
        self.client = Minio(address, *ROOT, secure=tls, region="us-east-1", http_client=self.http)
        self.admin = MinioAdmin(endpoint=address, credentials=StaticProvider(*ROOT), secure=tls, http_client=self.http)
        self.start()

    def start(self) -> None:
        self.process.start()
        try:
            self.process.wait_until(self._ready, READY_SECONDS)
        except BaseException:
            self.process.kill()
            raise

    def stop(self) -> None:
        self.process.stop()

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
        return f"s3://{bucket}/{prefix}?" + urlencode({"endpoint": endpoint or self.endpoint, **more}, safe=":/")

    @property
    def environment(self) -> dict[str, str]:
        """Keys that may do everything, and the authority of the certificate."""
        return self._environment(*ROOT)

    def new_user(self, bucket: str | None = None) -> dict[str, str]:
        """The environment of a user who may read and write everything, or one bucket alone."""
        name, secret = f"user-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        self.admin.user_add(name, secret)
        self.admin.attach_policy([self._policy(bucket) if bucket else "readwrite"], user=name)
        return self._environment(name, secret)

    def session(self, user: Mapping[str, str]) -> dict[str, str]:
        """Temporary keys of a user, with a session token."""
        given = AssumeRoleProvider(
            sts_endpoint=self.endpoint,
            access_key=user["DAPO_S3_ACCESS_KEY"],
            secret_key=user["DAPO_S3_SECRET_KEY"],
            http_client=self.http,
        ).retrieve()
        token = {"DAPO_S3_SESSION_TOKEN": given.session_token or ""}
        return self._environment(given.access_key, given.secret_key) | token

    def _policy(self, bucket: str) -> str:
        """What docs/stores.md tells to grant a trainer."""
        arn = f"arn:aws:s3:::{bucket}"
        of_objects = [f"s3:{verb}" for verb in ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")]
        of_buckets = ["s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"]
        statements = [
            {"Effect": "Allow", "Action": of_buckets, "Resource": [arn]},
            {"Effect": "Allow", "Action": of_objects, "Resource": [f"{arn}/*"]},
        ]
        self.admin.policy_add(bucket, policy={"Version": "2012-10-17", "Statement": statements})
        return bucket

    def _environment(self, access_key: str, secret_key: str) -> dict[str, str]:
        authority = {"DAPO_S3_CA_FILE": str(self.certificate)} if self.certificate else {}
        return {"DAPO_S3_ACCESS_KEY": access_key, "DAPO_S3_SECRET_KEY": secret_key} | authority

    def _ready(self) -> bool:
        # It answers before its disks and its users are there.
        with suppress(urllib3.exceptions.HTTPError, MinioException, MinioAdminException):
            self.client.list_buckets()
            self.admin.user_list()
            return True
        return False


def _certificate(folder: Path) -> Path:
    """A key and a certificate of 127.0.0.1 that vouches for itself, where MinIO looks for them."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dapo-test")])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    (folder / "private.key").write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    (folder / "public.crt").write_bytes(made.public_bytes(encoding))
    return folder / "public.crt"


@pytest.fixture(scope="session")
def minio() -> Iterator[MinioServer]:
    """One server for all tests that do not stop it."""
    server = MinioServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def tls_minio() -> Iterator[MinioServer]:
    server = MinioServer(tls=True)
    yield server
    server.close()


@pytest.fixture
def s3(minio: MinioServer) -> tuple[str, Mapping[str, str]]:
    """URL and environment of an empty prefix: of DAPO_TEST_S3_URL with the DAPO_S3_* of this process, or of `minio`."""
    if outside := os.environ.get("DAPO_TEST_S3_URL"):
        base, _, query = outside.partition("?")
        return f"{base.rstrip('/')}/{uuid.uuid4().hex[:8]}?{query}", os.environ
    return minio.url(minio.new_bucket()), minio.environment
