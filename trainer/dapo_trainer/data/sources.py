"""URIs -> local paths."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from dapo_core.errors import DataError, ModelError, StoreError
from dapo_core.objectstore import StoreUnreachableError
from dapo_trainer.data.copies import copied_file, copied_folder

READABLE = "name a file:///, pvc://, s3:// or hf:// source."
# Where the operator mounts the claims that a job names.
CLAIMS = Path("/pvc")


def local_path(uri: str) -> Path:
    """The path of a file:// or pvc:// URI."""
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    return CLAIMS / parts.netloc / path.relative_to("/") if parts.scheme == "pvc" else path


def model_folder(uri: str, revision: str | None = None) -> Path:
    """A folder that transformers can load: the file:// or pvc:// folder itself, or a copy of an S3 folder or of a
    hub's repository.

    Raises ModelError naming the URI and the remedy, StoreUnreachableError when S3 does not answer.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(rest, revision=revision))
        except Exception as error:  # the hub's client raises OSError, HTTP and validation errors alike
            raise ModelError(f"spec.model.source {uri} could not be downloaded: {_first_line(error)}") from error
    if scheme not in ("file", "pvc", "s3"):
        raise ModelError(f"spec.model.source {uri} is not on this machine: {READABLE}")
    try:
        folder = copied_folder(uri) if scheme == "s3" else local_path(uri)
    except StoreUnreachableError:
        raise  # it may be there in a while: not the job's fault
    except StoreError as error:
        raise ModelError(f"spec.model.source {uri} can not be read: {error}") from error
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"spec.model.source {uri} {what}: name a folder in Hugging Face's format.")
    return folder


def data_file(uri: str, field: str) -> Path:
    """A parquet or JSON-lines file: the file:// or pvc:// path, a copy of an S3 object or of one file of a hub
    data set (hf://datasets/ORG/NAME/FILE).

    Raises DataError naming `field`, the URI and the remedy, StoreUnreachableError when S3 does not answer.
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
        raise DataError(f"{field} {uri} can not be read: {error}") from error
    if not path.is_file():
        raise DataError(f"{field} {uri} does not exist: name a parquet or JSON-lines file.")
    return path


def _hub_file(uri: str, place: str, field: str) -> Path:
    from huggingface_hub import hf_hub_download

    kind, *names = place.split("/")
    if kind != "datasets" or len(names) < 3 or not all(names):
        raise DataError(f"{field} {uri} names no file of a data set: write hf://datasets/ORGANISATION/NAME/FILE.")
    try:
        return Path(hf_hub_download("/".join(names[:2]), "/".join(names[2:]), repo_type="dataset"))
    except Exception as error:  # the hub's client raises OSError, HTTP and validation errors alike
        raise DataError(f"{field} {uri} could not be downloaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
