"""Models and data files by URI as local paths; what is in S3 or on a hub is downloaded once to this machine's cache."""

import os
import shutil
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Final
from urllib.parse import unquote, urlsplit

from dapo_core.errors import DataError, ModelError, StoreError, first_line
from dapo_core.objectstore import ObjectInfo, ObjectStore, StoreUnreachableError, open_store
from dapo_core.parallel import parallel

READABLE: Final = "use a file:///, pvc://, s3:// or hf:// source."
# Where the operator mounts the claims that a job names.
CLAIMS: Final = Path("/pvc")
DOWNLOAD_WORKERS: Final = 4


def local_path(uri: str) -> Path:
    """The path of a file:// or pvc:// URI."""
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    return CLAIMS / parts.netloc / path.relative_to("/") if parts.scheme == "pvc" else path


def model_folder(uri: str, revision: str | None = None) -> Path:
    """A folder that transformers can load: the file:// or pvc:// folder itself, or a copy of an S3 prefix or of a
    hub's repository.

    Raises ModelError naming the URI and the remedy, StoreUnreachableError when S3 does not respond.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(rest, revision=revision))
        except Exception as error:  # the hub's client raises OSError, HTTP and validation errors alike
            raise ModelError(f"spec.model.source {uri} could not be downloaded: {first_line(error)}") from error
    if scheme not in ("file", "pvc", "s3"):
        raise ModelError(f"spec.model.source {uri} is not on this machine: {READABLE}")
    try:
        folder = copied_folder(uri) if scheme == "s3" else local_path(uri)
    except StoreUnreachableError:
        raise  # it may be reachable later: not the job's fault
    except StoreError as error:
        raise ModelError(f"spec.model.source {uri} cannot be read: {error}") from error
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"spec.model.source {uri} {what}: name a folder in Hugging Face's format.")
    return folder


def data_file(uri: str, field: str) -> Path:
    """A parquet or JSON-lines file: the file:// or pvc:// path, or a copy of an S3 object or of one file of a hub
    dataset (hf://datasets/ORG/NAME/FILE).

    Raises DataError naming `field`, the URI and the remedy, StoreUnreachableError when S3 does not respond.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        return _hub_file(uri, rest, field)
    if scheme not in ("file", "pvc", "s3"):
        raise DataError(f"{field} {uri} is not on this machine: {READABLE}")
    try:
        path = copied_file(uri) if scheme == "s3" else local_path(uri)
    except StoreUnreachableError:
        raise
    except StoreError as error:
        raise DataError(f"{field} {uri} cannot be read: {error}") from error
    if not path.is_file():
        raise DataError(f"{field} {uri} does not exist: name a parquet or JSON-lines file.")
    return path


def _hub_file(uri: str, place: str, field: str) -> Path:
    from huggingface_hub import hf_hub_download

    kind, *names = place.split("/")
    if kind != "datasets" or len(names) < 3 or not all(names):
        raise DataError(f"{field} {uri} is not a file of a dataset: use hf://datasets/ORGANIZATION/NAME/FILE.")
    try:
        return Path(hf_hub_download("/".join(names[:2]), "/".join(names[2:]), repo_type="dataset"))
    except Exception as error:  # the hub's client raises OSError, HTTP and validation errors alike
        raise DataError(f"{field} {uri} could not be downloaded: {first_line(error)}") from error


def copied_folder(uri: str) -> Path:
    """A copy of all objects under an s3:// prefix, as a folder. Raises StoreError, also when there are none."""
    store = open_store(uri)
    objects = list(store.list(""))
    if not objects:
        raise StoreError(f"No objects found under {uri}.")
    return _copied(store, uri, objects)


def copied_file(uri: str) -> Path:
    """A copy of one s3:// object, as a file of the same name. Raises StoreError."""
    path, mark, query = uri.partition("?")
    parent, _, name = path.rpartition("/")
    # What follows the question mark says where the server is, and belongs to the store.
    store = open_store(parent + mark + query)
    objects = [info for info in store.list(name) if info.key == name]
    if not objects:
        raise StoreError(f"{uri} was not found.")
    return _copied(store, uri, objects) / name


def _copied(store: ObjectStore, uri: str, objects: Sequence[ObjectInfo]) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dapo" / "sources"
    # The path is the same on every pod of a job, since the driver passes it to engines; and it changes when an object
    # was replaced, so that nobody trains on an outdated copy.
    version = "\n".join([uri, *(f"{info.key} {info.size} {info.modified}" for info in objects)])
    final = root / sha256(version.encode()).hexdigest()[:16]
    if final.is_dir():
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        part = Path(mkdtemp(dir=root))
    except OSError as error:
        raise StoreError(f"{uri} cannot be copied to {root}: {error.strerror}.") from error
    try:
        parallel(partial(_copy, store, part), objects, DOWNLOAD_WORKERS)
        part.rename(final)
    except OSError as error:
        if not final.is_dir():  # another process of this machine was faster
            raise StoreError(f"{uri} cannot be copied to {final}: {error.strerror}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final


def _copy(store: ObjectStore, folder: Path, info: ObjectInfo) -> None:
    target = folder / info.key
    target.parent.mkdir(parents=True, exist_ok=True)
    store.get_file(info.key, target)
