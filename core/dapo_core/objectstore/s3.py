"""Objects in S3, or in a server that speaks its protocol."""

import hashlib
import io
import logging
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import certifi
import urllib3
from minio import Minio
from minio.credentials.providers import Provider
from minio.error import S3Error
from urllib3.util import Retry, Timeout

from dapo_core.errors import StoreError
from dapo_core.objectstore import s3_address as addresses
from dapo_core.objectstore.contract import (
    CHUNK,
    MOST_BYTES,
    Content,
    ObjectInfo,
    ObjectNotFoundError,
    Readable,
    check_key,
    measure,
    part_bytes_of,
    read_whole,
)
from dapo_core.objectstore.s3_address import Address
from dapo_core.objectstore.s3_credentials import provider
from dapo_core.objectstore.s3_errors import explained
from dapo_core.objectstore.s3_requests import IncompleteUpload, S3Requests
from dapo_core.objectstore.s3_transfers import PartedUpload, ResumingReader

log = logging.getLogger(__name__)

# The time to connect is also that to send one block of a request (`s3_requests`).
TIMEOUT: Final = Timeout(connect=30.0, read=60.0)
# Every request may be repeated: an object that is put again is the same. About half a minute in all; only some seconds
# where nobody answers, so that a wrong endpoint is reported soon: callers that can wait retry.
RETRIES: Final = Retry(
    total=8,
    connect=4,
    backoff_factor=0.25,
    backoff_max=8.0,
    backoff_jitter=0.5,
    status_forcelist=(408, 429, 500, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
)


def open_s3(url: str, environment: Mapping[str, str] = os.environ, retries: Retry = RETRIES) -> "S3Store":
    """The store at `url` with the keys of `environment`. Raises StoreError for incomplete settings."""
    address, keys = addresses.parse(url, environment), provider(environment)
    tls = _tls(environment.get(addresses.CA_FILE) or None) if address.secure else None
    http = urllib3.PoolManager(timeout=TIMEOUT, retries=retries, maxsize=16, ssl_context=tls)
    client = _client(address, keys, http)
    return S3Store(address, client, S3Requests(client, keys, http, address.bucket))


def _client(address: Address, keys: Provider, http: urllib3.PoolManager) -> Minio:
    client = Minio(
        address.host,
        credentials=keys,
        secure=address.secure,
        region=address.region,
        http_client=http,
    )
    if address.path_style is True:
        client.disable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    if address.path_style is False:
        client.enable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    return client


def _tls(ca_file: str | None) -> ssl.SSLContext:
    # The system's certificates, to which an administrator may have added some, and certifi's for images without any.
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    try:
        if ca_file is not None:
            context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"{addresses.CA_FILE} is {ca_file}, which cannot be read ({reason}): set it to a PEM file of certificates."
        ) from error
    return context


class S3Store:
    """Objects under one prefix of a bucket. A large file is sent in parts, and exists once all have arrived."""

    def __init__(self, address: Address, client: Minio, requests: S3Requests) -> None:
        self._at = address
        self._client = client
        self._requests = requests

    @property
    def url(self) -> str:
        return self._at.url()

    def address(self, key: str) -> str:
        return self._at.url(key)

    def put_file(self, key: str, path: Path, *, give: bool = False) -> Content:
        with self._explained(f"{path} cannot be read", StoreError):
            stream = path.open("rb")
        with stream, self._explained(f"{key} cannot be written to {self._at.where}", StoreError):
            size = os.fstat(stream.fileno()).st_size
            if (part_bytes := part_bytes_of(size)) is not None:
                return PartedUpload(self._requests, self._name(key), stream, size, part_bytes).send()
            return self._put(key, stream.read())

    def put_bytes(self, key: str, data: bytes) -> None:
        with self._explained(f"{key} cannot be written to {self._at.where}", StoreError):
            self._put(key, data)

    def _put(self, key: str, data: bytes) -> Content:
        content = Content(len(data), hashlib.sha256(data).hexdigest())
        self._requests.put(self._name(key), data, content.sha256)
        return content

    def get_file(self, key: str, path: Path) -> None:
        with self.open(key) as stream, self._explained(f"{key} cannot be written to {path}"), path.open("wb") as file:
            measure(stream, file)

    def get_bytes(self, key: str, most: int = MOST_BYTES) -> bytes:
        with self.open(key) as stream:
            return read_whole(key, stream, most)

    @contextmanager
    def open(self, key: str) -> Iterator[Readable]:
        name = self._name(key)
        reader = ResumingReader(self._client, self._at, name, f"{key} cannot be read from {self._at.where}")
        with reader:
            # Larger reads bypass the buffer.
            yield io.BufferedReader(reader, CHUNK // 4)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        skipped = len(self._at.key(""))
        with self._explained(f"{prefix or 'everything'} cannot be listed in {self._at.where}"):
            for entry in self._client.list_objects(self._at.bucket, self._at.key(prefix), recursive=True):
                changed = entry.last_modified.timestamp() if entry.last_modified else 0.0
                yield ObjectInfo(str(entry.object_name)[skipped:], entry.size or 0, changed)

    def folders(self) -> Iterator[str]:
        skipped = len(self._at.key(""))
        with self._explained(f"folders cannot be listed in {self._at.where}"):
            for entry in self._client.list_objects(self._at.bucket, self._at.key("") or None):
                if entry.is_dir:
                    yield str(entry.object_name)[skipped:].rstrip("/")

    def delete(self, key: str) -> None:
        # MinIO and Amazon accept the deletion of an object that does not exist; Google and old gateways answer 404.
        with suppress(ObjectNotFoundError), self._explained(f"{key} cannot be deleted from {self._at.where}"):
            self._client.remove_object(self._at.bucket, self._name(key))

    def exists(self, key: str) -> bool:
        # Not HEAD: its response has no error document, so a missing bucket would look like a missing object.
        return any(info.key == check_key(key) for info in self.list(key))

    def sweep_incomplete(self, prefix: str, older_than_seconds: float) -> int:
        """Amazon lists them by prefix. MinIO lists those of one key only, and itself removes what is a day old.

        Without permission to list them, or where the server does not support it, none are removed.
        """
        limit = time.time() - older_than_seconds
        with self._explained(f"{prefix} cannot be swept in {self._at.where}"):
            old = [upload for upload in self._incomplete(prefix) if upload.started <= limit]
            for upload in old:
                self._requests.abort_upload(upload.name, upload.upload_id)
        return len(old)

    def _incomplete(self, prefix: str) -> Sequence[IncompleteUpload]:
        try:
            return self._requests.incomplete_uploads(self._at.key(prefix))
        except S3Error as error:
            if error.code not in ("AccessDenied", "NotImplemented", "MethodNotAllowed"):
                raise
            log.warning("Skipping cleanup of incomplete uploads in %s: %s.", self._at.where, error.code)
            return ()

    def _name(self, key: str) -> str:
        return self._at.key(check_key(key))

    def _explained(self, what: str, absent: type[StoreError] = ObjectNotFoundError) -> AbstractContextManager[None]:
        return explained(what, self._at, absent)
