"""Where checkpoints and samples are stored: objects by key, in a folder or in S3, behind one contract."""

import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dapo_core.errors import StoreError
from dapo_core.objectstore.contract import (
    Content,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStore,
    ObjectTooLargeError,
    StoreUnreachableError,
    measure,
    part_bytes_of,
)
from dapo_core.objectstore.folder import FolderStore

__all__ = [
    "Content",
    "FolderStore",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectTooLargeError",
    "StoreUnreachableError",
    "measure",
    "open_store",
    "part_bytes_of",
    "probe",
]

_SUPPORTED = "use s3://bucket/prefix or file:///folder"


def open_store(url: str) -> ObjectStore:
    """The store at `url`, with credentials from the environment; no request is made yet.

    Raises StoreError for a scheme that is not supported and for incomplete settings.
    """
    try:
        return _opened(url)
    except ValueError as error:  # a port that is no number, half a pair of brackets, a name that is no bucket's
        raise StoreError(f"The store {url!r} is not a URL of one: {error}; {_SUPPORTED}.") from error


def _opened(url: str) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme == "s3":
        from dapo_core.objectstore.s3 import open_s3  # the client takes a while to import

        return open_s3(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        if "\0" in (path := unquote(parts.path)):
            raise ValueError("a path has no null character")
        return FolderStore(Path(path))
    if parts.scheme == "file":
        raise StoreError(f"The store {url!r} is not an absolute folder; use file:///folder.")
    raise StoreError(f"The store {url!r} has a scheme that is not supported; {_SUPPORTED}.")


def probe(store: ObjectStore, prefix: str = "") -> None:
    """Lists, writes and deletes under `prefix`, so that missing permissions show now and not at the first checkpoint.

    Raises StoreError.
    """
    next(iter(store.list(prefix)), None)
    key = f"{prefix}{uuid.uuid4().hex}.probe"
    store.put_bytes(key, b"")
    store.delete(key)
