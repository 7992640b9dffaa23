"""Models and data files by URI as local paths; what is in S3 or on a hub is downloaded once to this machine's cache."""

import os
import shutil
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePath
from tempfile import mkdtemp
from typing import Final
from urllib.parse import unquote, urlsplit

from dapo_core.errors import DataError, ModelError, StoreError, first_line
from dapo_core.objectstore import ObjectInfo, ObjectStore, StoreUnreachableError, open_store
from dapo_core.objectstore.contract import check_key
from dapo_core.parallel import parallel
from dapo_trainer.data.model_cache import CachedModels, Fetch

READABLE: Final = "use a file:///, pvc://, s3:// or hf:// source."
# Where the operator mounts the claims that a job names.
CLAIMS: Final = Path("/pvc")
# Names the folder at which the operator mounts a model's image.
MOUNTED: Final = "DAPO_MODEL_FOLDER"
DOWNLOAD_WORKERS: Final = 4
# The files of a model without its weights, which are not needed to count tokens.
TOKENIZER_FILES: Final = ("*.json", "*.txt", "*.model", "*.jinja")


def local_path(uri: str) -> Path:
    """The path of a file:// or pvc:// URI."""
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    return CLAIMS / parts.netloc / path.relative_to("/") if parts.scheme == "pvc" else path


def model_folder(uri: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """A folder that transformers can load: the file:// or pvc:// folder itself, or a copy of an S3 prefix or of a
    hub's repository, in the node's cache where the pod has one; an image that the pod mounts stands for any of them.
    Without `weights`: the same path with tokenizer and configuration only, on a disk of this pod's own.

    Raises ModelError naming the URI and the remedy, StoreUnreachableError when S3 does not respond.
    """
    if mounted := os.environ.get(MOUNTED):
        return _mounted(Path(mounted))
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        try:
            return hub_model(rest, revision, weights)
        except ModelError:
            raise
        except Exception as error:  # the hub's client raises OSError, HTTP and validation errors alike
            raise ModelError(f"spec.model.source {uri} could not be downloaded: {first_line(error)}") from error
    if scheme not in ("file", "pvc", "s3"):
        raise ModelError(f"spec.model.source {uri} is not on this machine: {READABLE}")
    try:
        folder = _bucket_model(uri, weights) if scheme == "s3" else local_path(uri)
    except StoreUnreachableError:
        raise  # it may be reachable later: not the job's fault
    except StoreError as error:
        raise ModelError(f"spec.model.source {uri} cannot be read: {error}") from error
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"spec.model.source {uri} {what}: name a folder in Hugging Face's format.")
    return folder


def _mounted(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(
            "spec.topology.modelCache.image has no config.json at its root: build it from a folder in Hugging Face's "
            "format, or remove it."
        )
    return folder


def folder_at_hand(uri: str, revision: str | None = None) -> Path | None:
    """A model's folder on this machine, which may lack some of its files: the file:// folder itself, or what the hub's
    client has fetched before. None for any other; nothing is fetched."""
    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        return local_path(uri)
    if scheme != "hf":
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(rest, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def hub_model(repository: str, revision: str | None, weights: bool) -> Path:
    """A copy of a hub's repository. Raises what the hub's client raises, and ModelError when the cache is too small."""
    from huggingface_hub import HfApi, snapshot_download

    patterns, cache = None if weights else list(TOKENIZER_FILES), CachedModels.of_environment()
    if cache is None:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    files = info.siblings or []
    sums = {file.rfilename: file.lfs.sha256 for file in files if file.lfs is not None}

    def fetch(into: Path) -> None:
        snapshot_download(repository, revision=info.sha, local_dir=into, allow_patterns=patterns)

    name = _digest(f"hf://{repository}@{info.sha}")
    if not weights:
        return cache.part(name, fetch)
    return cache.folder(name, sum(file.size or 0 for file in files), fetch, sums)


def _bucket_model(uri: str, weights: bool) -> Path:
    """A copy of the objects under an s3:// prefix. Raises StoreError, and ModelError when the cache is too small."""
    store, objects = _listed(uri)
    cache, name = CachedModels.of_environment(), _version(uri, objects)
    chosen = objects if weights else [info for info in objects if any(map(PurePath(info.key).match, TOKENIZER_FILES))]
    fetch = _fetching(store, chosen)
    if cache is None:
        return _copied(uri, name, fetch)
    return cache.folder(name, sum(info.size for info in objects), fetch) if weights else cache.part(name, fetch)


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
    store, objects = _listed(uri)
    return _copied(uri, _version(uri, objects), _fetching(store, objects))


def copied_file(uri: str) -> Path:
    """A copy of one s3:// object, as a file of the same name. Raises StoreError."""
    path, mark, query = uri.partition("?")
    parent, _, name = path.rpartition("/")
    # What follows the question mark says where the server is, and belongs to the store.
    store = open_store(parent + mark + query)
    objects = [info for info in store.list(name) if info.key == name]
    if not objects:
        raise StoreError(f"{uri} was not found.")
    return _copied(uri, _version(uri, objects), _fetching(store, objects)) / name


def _listed(uri: str) -> tuple[ObjectStore, Sequence[ObjectInfo]]:
    store = open_store(uri)
    objects = list(store.list(""))
    if not objects:
        raise StoreError(f"No objects found under {uri}.")
    return store, objects


def _version(uri: str, objects: Sequence[ObjectInfo]) -> str:
    """A name that is the same on every pod of a job, since the driver passes the path to engines; and that changes when
    an object was replaced, so that nobody trains on an outdated copy."""
    return _digest("\n".join([uri, *(f"{info.key} {info.size} {info.modified}" for info in objects)]))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _fetching(store: ObjectStore, objects: Sequence[ObjectInfo]) -> Fetch:
    def fetch(into: Path) -> None:
        parallel(partial(_copy, store, into), objects, DOWNLOAD_WORKERS)

    return fetch


def _copied(uri: str, name: str, fetch: Fetch) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dapo" / "sources"
    final = root / name
    if final.is_dir():
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        part = Path(mkdtemp(dir=root))
    except OSError as error:
        raise StoreError(f"{uri} cannot be copied to {root}: {error.strerror}.") from error
    try:
        fetch(part)
        part.rename(final)
    except OSError as error:
        if not final.is_dir():  # another process of this machine was faster
            raise StoreError(f"{uri} cannot be copied to {final}: {error.strerror}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final


def _copy(store: ObjectStore, folder: Path, info: ObjectInfo) -> None:
    # A store may list any key: no folder is made outside the copy.
    target = folder / check_key(info.key)
    target.parent.mkdir(parents=True, exist_ok=True)
    store.get_file(info.key, target)
