"""What lies in S3, as files of this machine: copied once, and there only when it is whole."""

import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

from dapo_core.errors import StoreError
from dapo_core.objectstore import ObjectStore, open_store


def copied_folder(uri: str) -> Path:
    """All objects under an s3:// prefix as a folder. Raises StoreError, also when there are none."""
    store = open_store(uri)
    return _once(uri, lambda folder: _copy_all(store, uri, folder))


def copied_file(uri: str) -> Path:
    """One s3:// object as a file of the same name. Raises StoreError."""
    parent, _, name = uri.rpartition("/")
    store = open_store(parent)

    def copy(folder: Path) -> None:
        store.get_file(name, folder / name)

    return _once(uri, copy) / name


def _copy_all(store: ObjectStore, uri: str, folder: Path) -> None:
    keys = [info.key for info in store.list("")]
    if not keys:
        raise StoreError(f"There is nothing under {uri}.")
    for key in keys:
        target = folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        store.get_file(key, target)


def _once(uri: str, copy: Callable[[Path], None]) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dapo" / "sources"
    # The path is the same on every pod of a job: engines are told it by the driver.
    final = root / sha256(uri.encode()).hexdigest()[:16]
    if final.is_dir():
        return final
    root.mkdir(parents=True, exist_ok=True)
    part = Path(mkdtemp(dir=root))
    try:
        copy(part)
        part.rename(final)
    except OSError:
        if not final.is_dir():  # another process of this machine was quicker
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final
