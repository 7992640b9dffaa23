"""A MinIO server on loopback, of this test run alone: buckets, users, quotas, TLS, an end and a new start."""

import datetime
import ipaddress
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final

import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from minio.credentials import AssumeRoleProvider, StaticProvider
from minio.error import MinioAdminException, MinioException
from minio.minioadmin import MinioAdmin

from servers.ports import free_port
from servers.s3_server import S3Server
from servers.tools import tool

ROOT: Final = ("dapo-test-root", "dapo-test-secret")


class MinioServer(S3Server):
    """MinIO with its users, policies and sessions."""

    name = "minio"

    def __init__(self, *, tls: bool = False) -> None:
        self._tls = tls
        super().__init__(ROOT[1])

    def certify(self) -> Path | None:
        return _certificate(self.folder / "certs") if self._tls else None

    def command(self) -> list[str]:
        command = [str(tool("minio")), "server", str(self.folder / "data"), "--address", self.address, "--quiet"]
        return [*command, "--certs-dir", str(self.folder / "certs"), "--console-address", f"127.0.0.1:{free_port()}"]

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "MINIO_ROOT_USER": ROOT[0],
            "MINIO_ROOT_PASSWORD": ROOT[1],
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }

    @cached_property
    def admin(self) -> MinioAdmin:
        credentials = StaticProvider(*ROOT)
        return MinioAdmin(endpoint=self.address, credentials=credentials, secure=self._tls, http_client=self.http)

    def stop(self) -> None:
        self.process.stop()

    def new_user(self, bucket: str | None = None) -> dict[str, str]:
        """The environment of a user who may read and write everything, or one bucket alone."""
        name, secret = f"user-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        self.admin.user_add(name, secret)
        self.admin.attach_policy([self._policy(bucket) if bucket else "readwrite"], user=name)
        return self.environment_of(name, secret)

    def session(self, user: Mapping[str, str]) -> dict[str, str]:
        """Temporary keys of a user, with a session token."""
        given = AssumeRoleProvider(
            sts_endpoint=self.endpoint,
            access_key=user["DAPO_S3_ACCESS_KEY"],
            secret_key=user["DAPO_S3_SECRET_KEY"],
            http_client=self.http,
        ).retrieve()
        token = {"DAPO_S3_SESSION_TOKEN": given.session_token or ""}
        return self.environment_of(given.access_key, given.secret_key) | token

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

    def _ready(self) -> bool:
        # It answers before its disks and its users are there.
        with suppress(urllib3.exceptions.HTTPError, MinioException, MinioAdminException):
            self.admin.user_list()
            return super()._ready()
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
