"""`python -m dapo_operator.accounts`: creates or updates the logins of an installation's own Postgres and MinIO.

Each job namespace gets a database login that is restricted to its rows and an object store user that is restricted to
its folder. The operator gets a login that writes all rows; the dashboard gets two that read all rows, one of which may
acknowledge alerts, and a user that reads all objects; who sends alerts gets one that reads them and nothing else.
Passwords come from the files of a mounted Secret. It may be run again at any time: passwords become those of the files,
and namespaces that left the list lose their access.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.error import MinioException
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from dapo_core.db import roles
from dapo_core.errors import StoreError

log = logging.getLogger("dapo_operator.accounts")

ROOT_USER: Final = "dapo-root"
DASHBOARD: Final = "dapo-dashboard"
_WRITERS, _USERS = "dapo_writer_", "dapo-"
# Of the server's 400, so that those of the platform remain whatever the teams do.
_CONNECTIONS_OF_TEAMS: Final = 320
_LEAST_CONNECTIONS: Final = 10
WAIT_SECONDS: Final = 300.0
PAUSE_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Accounts:
    """`secrets` is the folder of passwords. `database` (the owner's URL) or `endpoint` is None when that store is
    external: its administrator creates the logins."""

    namespaces: Sequence[str]
    secrets: Path
    bucket: str
    database: str | None = None
    endpoint: str | None = None
    root_user: str = ROOT_USER

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
    return _WRITERS + namespace.replace("-", "_")


def store_user(namespace: str) -> str:
    """The object store's user of a namespace's trainers."""
    return _USERS + namespace


def grant_logins(accounts: Accounts, database: str) -> None:
    """Create or update the database logins, and revoke those of namespaces that left. Raises DapoError."""
    most = min(roles.CONNECTIONS, max(_LEAST_CONNECTIONS, _CONNECTIONS_OF_TEAMS // max(1, len(accounts.namespaces))))
    for namespace in accounts.namespaces:
        password = accounts.secret(f"writer-password.{namespace}")
        roles.grant(database, login(namespace), "writer", namespace, password, most)
    for name, _, bound in roles.logins(database):
        if bound is not None and name == login(bound) and bound not in accounts.namespaces:
            roles.revoke(database, name)
            log.info("Revoked the database login of namespace %s", bound)
    roles.grant(database, "dapo_operations", "operator", None, accounts.secret("operator-password"))
    roles.grant(database, "dapo_dashboard", "reader", None, accounts.secret("reader-password"))
    roles.grant(database, "dapo_clerk", "acknowledger", None, accounts.secret("acknowledger-password"))
    roles.grant(database, "dapo_notices", "notifier", None, accounts.secret("notifier-password"))
    log.info("Database logins are up to date: %d namespaces and the dashboard", len(accounts.namespaces))


def policy(bucket: str, folder: str | None, *, write: bool) -> dict[str, Any]:
    """An S3 policy for one folder of a bucket; `folder` None: for the whole bucket."""
    objects = ["s3:GetObject"]
    if write:
        objects += ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    listing: dict[str, Any] = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}"],
    }
    whole = ["s3:GetBucketLocation"]
    if write:
        # MinIO does not support a prefix here: all writers can see the names of incomplete uploads.
        whole.append("s3:ListBucketMultipartUploads")
    if folder:
        listing["Condition"] = {"StringLike": {"s3:prefix": [f"{folder}/", f"{folder}/*"]}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            # Keys that a user makes of its own, temporary ones included, would outlive its password.
            {"Effect": "Deny", "Action": ["admin:CreateServiceAccount", "admin:UpdateServiceAccount"]},
            {
                "Effect": "Deny",
                "Action": ["s3:*"],
                "Resource": ["arn:aws:s3:::*"],
                "Condition": {"StringEquals": {"aws:principaltype": ["AssumedRole"]}},
            },
            listing,
            {"Effect": "Allow", "Action": whole, "Resource": [f"arn:aws:s3:::{bucket}"]},
            {
                "Effect": "Allow",
                "Action": objects,
                "Resource": [f"arn:aws:s3:::{bucket}/{folder or ''}{'/' if folder else ''}*"],
            },
        ],
    }


def make_users(accounts: Accounts, endpoint: str) -> None:
    """Create or update the bucket and the object store users, and remove those of namespaces that left. Raises minio's
    errors."""
    url, password = urlsplit(endpoint), accounts.secret("minio-root-password")
    secure = url.scheme == "https"
    http = PoolManager(retries=False, timeout=10.0)
    client = Minio(
        endpoint=url.netloc, access_key=accounts.root_user, secret_key=password, secure=secure, http_client=http
    )
    if not client.bucket_exists(accounts.bucket):
        client.make_bucket(accounts.bucket)
    admin = MinioAdmin(
        endpoint=url.netloc, credentials=StaticProvider(accounts.root_user, password), secure=secure, http_client=http
    )
    for namespace in accounts.namespaces:
        rights = policy(accounts.bucket, namespace, write=True)
        _make_user(admin, store_user(namespace), accounts.secret(f"minio-password.{namespace}"), rights)
    _make_user(admin, DASHBOARD, accounts.secret("minio-reader-password"), policy(accounts.bucket, None, write=False))
    wanted = {DASHBOARD, *map(store_user, accounts.namespaces)}
    for name in json.loads(admin.user_list()):
        if name.startswith(_USERS) and name not in wanted:
            admin.user_remove(name)
            log.info("Removed the object store user %s", name)
    log.info("Object store users are up to date: %d namespaces and the dashboard", len(accounts.namespaces))


def _make_user(admin: MinioAdmin, name: str, password: str, rights: dict[str, Any]) -> None:
    admin.user_add(name, password)
    admin.policy_add(name, policy=rights)
    # Made before the policy forbade it: they would work with any password of the user.
    for key in json.loads(admin.list_service_account(name)).get("accounts") or []:
        admin.delete_service_account(key["accessKey"])
    if name not in json.loads(admin.user_info(name)).get("policyName", "").split(","):
        admin.attach_policy([name], user=name)


def retry(what: str, work: Callable[[], None], seconds: float = WAIT_SECONDS) -> None:
    """Do the work once its store responds, a while after an install. Raises the last error after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except (StoreError, HTTPError, MinioException) as error:
            if time.monotonic() > end:
                raise
            log.info("%s does not respond yet. Retrying. %s", what, str(error).partition("\n")[0][:200])
            time.sleep(PAUSE_SECONDS)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    accounts = Accounts.from_env()
    if (database := accounts.database) is not None:
        retry("The database", lambda: grant_logins(accounts, database))
    if (endpoint := accounts.endpoint) is not None:
        retry("The object store", lambda: make_users(accounts, endpoint))


if __name__ == "__main__":
    main()
