"""`python -m dapo_operator.accounts`: the logins of an installation's own Postgres and MinIO, made or renewed.

Each job namespace gets a login of the database that is bound to its rows and a user of the object store that is bound
to its folder; the dashboard gets two logins that read all rows, of which one may acknowledge alerts, and a user that
reads all objects. Passwords come from the files of a mounted Secret. May be run again at any time.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider

from dapo_core.db import roles

log = logging.getLogger("dapo_operator.accounts")

ROOT_USER: Final = "dapo-root"
DASHBOARD: Final = "dapo-dashboard"


@dataclass(frozen=True)
class Accounts:
    """`secrets` is the folder of passwords. `database` (the owner's URL) or `endpoint` is None where that store is not
    the installation's own, and its administrator makes the logins."""

    namespaces: Sequence[str]
    secrets: Path
    bucket: str
    database: str | None = None
    endpoint: str | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Accounts":
        return cls(
            namespaces=env.get("DAPO_JOB_NAMESPACES", "").split(),
            secrets=Path(env["DAPO_SECRETS"]),
            bucket=env.get("DAPO_BUCKET", "dapo"),
            database=env.get("DAPO_METADATA_URL") or None,
            endpoint=env.get("DAPO_S3_ENDPOINT") or None,
        )

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text()


def login(namespace: str) -> str:
    """The database login of a namespace's trainers."""
    return "dapo_writer_" + namespace.replace("-", "_")


def store_user(namespace: str) -> str:
    """The object store's user of a namespace's trainers."""
    return f"dapo-{namespace}"


def grant_logins(accounts: Accounts, database: str) -> None:
    """Raises DapoError."""
    for namespace in accounts.namespaces:
        password = accounts.secret(f"writer-password.{namespace}")
        roles.grant(database, login(namespace), "writer", namespace, password)
    roles.grant(database, "dapo_dashboard", "reader", None, accounts.secret("reader-password"))
    roles.grant(database, "dapo_clerk", "acknowledger", None, accounts.secret("acknowledger-password"))
    log.info("logins of the database: %d namespaces and the dashboard", len(accounts.namespaces))


def policy(bucket: str, folder: str | None, *, write: bool) -> dict[str, Any]:
    """An S3 policy for one folder of a bucket; None: all of it."""
    objects = ["s3:GetObject"]
    if write:
        objects += ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    listing: dict[str, Any] = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
        "Resource": [f"arn:aws:s3:::{bucket}"],
    }
    if folder:
        listing["Condition"] = {"StringLike": {"s3:prefix": [folder, f"{folder}/*"]}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            listing,
            {"Effect": "Allow", "Action": ["s3:GetBucketLocation"], "Resource": [f"arn:aws:s3:::{bucket}"]},
            {
                "Effect": "Allow",
                "Action": objects,
                "Resource": [f"arn:aws:s3:::{bucket}/{folder or ''}{'/' if folder else ''}*"],
            },
        ],
    }


def make_users(accounts: Accounts, endpoint: str) -> None:
    """Raises minio's errors."""
    url, password = urlsplit(endpoint), accounts.secret("minio-root-password")
    secure = url.scheme == "https"
    client = Minio(endpoint=url.netloc, access_key=ROOT_USER, secret_key=password, secure=secure)
    if not client.bucket_exists(accounts.bucket):
        client.make_bucket(accounts.bucket)
    admin = MinioAdmin(endpoint=url.netloc, credentials=StaticProvider(ROOT_USER, password), secure=secure)
    for namespace in accounts.namespaces:
        rights = policy(accounts.bucket, namespace, write=True)
        _make_user(admin, store_user(namespace), accounts.secret(f"minio-password.{namespace}"), rights)
    _make_user(admin, DASHBOARD, accounts.secret("minio-reader-password"), policy(accounts.bucket, None, write=False))
    log.info("users of the object store: %d namespaces and the dashboard", len(accounts.namespaces))


def _make_user(admin: MinioAdmin, name: str, password: str, rights: dict[str, Any]) -> None:
    admin.user_add(name, password)
    admin.policy_add(name, policy=rights)
    if name not in json.loads(admin.user_info(name)).get("policyName", "").split(","):
        admin.attach_policy([name], user=name)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    accounts = Accounts.from_env()
    if accounts.database:
        grant_logins(accounts, accounts.database)
    if accounts.endpoint:
        make_users(accounts, accounts.endpoint)


if __name__ == "__main__":
    main()
