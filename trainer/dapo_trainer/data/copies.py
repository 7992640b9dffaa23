"""What lies in S3, as files of this machine: there only when whole, copied once and again when it has changed."""

import os
import shutil
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from dapo_core.errors import StoreError
from dapo_core.objectstore import ObjectInfo, ObjectStore, open_store
from dapo_core.parallel import parallel

WORKERS: Final = 4


def copied_folder(uri: str) -> Path:
    """All objects under an s3:// prefix as a folder. Raises StoreError, also when there are none."""
    store = open_store(uri)
    found = list(store.list(""))
    if not found:
        raise StoreError(f"There is nothing under {uri}.")
    return _copied(store, uri, found)


def copied_file(uri: str) -> Path:
    """One s3:// object as a file of the same name. Raises StoreError."""
    path, mark, query = uri.partition("?")
    parent, _, name = path.rpartition("/")
    # What follows the question mark says where the server is, and belongs to the store.
    store = open_store(parent + mark + query)
    found = [info for info in store.list(name) if info.key == name]
    if not found:
        raise StoreError(f"There is no {uri}.")
    return _copied(store, uri, found) / name


def _copied(store: ObjectStore, uri: str, found: Sequence[ObjectInfo]) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dapo" / "sources"
    # The path is the same on every pod of a job, for engines are told it by the driver; and another one when an object
    # was replaced, for nobody wants to train on what was there last week.
    facts = "\n".join([uri, *(f"{info.key} {info.size} {info.modified}" for info in found)])
    final = root / sha256(facts.encode()).hexdigest()[:16]
    if final.is_dir():
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        part = Path(mkdtemp(dir=root))
    except OSError as error:
        raise StoreError(f"{uri} can not be copied to {root}: {error.strerror}.") from error
    try:
        parallel(partial(_copy, store, part), found, WORKERS)
        part.rename(final)
    except OSError as error:
        if not final.is_dir():  # another process of this machine was quicker
            raise StoreError(f"{uri} can not be copied to {final}: {error.strerror}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final


def _copy(store: ObjectStore, folder: Path, info: ObjectInfo) -> None:
    target = folder / info.key
    target.parent.mkdir(parents=True, exist_ok=True)
    store.get_file(info.key, target)
