"""The address of a bucket: `s3://bucket/prefix?endpoint=...&region=...&pathStyle=...` and the environment. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from dapo_core.errors import StoreError

AMAZON: Final = "https://s3.amazonaws.com"
ENDPOINT: Final = "DAPO_S3_ENDPOINT"
ACCESS_KEY: Final = "DAPO_S3_ACCESS_KEY"
SECRET_KEY: Final = "DAPO_S3_SECRET_KEY"
SESSION_TOKEN: Final = "DAPO_S3_SESSION_TOKEN"
CA_FILE: Final = "DAPO_S3_CA_FILE"
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True)
class Credentials:
    """S3 keys; `session_token` belongs to temporary ones."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"  # keeps secrets out of logs


@dataclass(frozen=True)
class Address:
    """A prefix of a bucket on a server. `region` None: the server is asked; `path_style` None: the bucket is in the
    host name at Amazon and in the path elsewhere."""

    bucket: str
    prefix: str
    endpoint: str
    region: str | None = None
    path_style: bool | None = None
    query: str = ""  # the part of the URL that says where the server is

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc

    @property
    def secure(self) -> bool:
        return urlsplit(self.endpoint).scheme == "https"

    @property
    def where(self) -> str:
        """Bucket and prefix, for messages."""
        return "/".join(part for part in (f"s3://{self.bucket}", self.prefix) if part)

    def key(self, key: str) -> str:
        """The object's name in the bucket."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def url(self, key: str = "") -> str:
        path = "/".join(part for part in (f"s3://{self.bucket}", self.prefix, key) if part)
        return path + (f"?{self.query}" if self.query else "")


def parse(url: str, environment: Mapping[str, str]) -> Address:
    """The address of `url`; what it does not say comes from the environment. Raises StoreError."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = options.keys() - {"endpoint", "region", "pathStyle"}
    if not parts.netloc or "@" in parts.netloc:
        raise StoreError(f"The store {url!r} has no bucket; use s3://bucket/prefix, and {ACCESS_KEY} for keys.")
    if unknown:
        raise StoreError(
            f"The store {url!r} has {', '.join(sorted(unknown))}, but knows only endpoint, region and pathStyle."
        )
    path_style = options.get("pathStyle")
    if path_style is not None and path_style not in _BOOLEANS:
        raise StoreError(f"The store {url!r} has pathStyle={path_style}; use true or false.")
    endpoint = _endpoint(options.get("endpoint") or environment.get(ENDPOINT) or AMAZON)
    return Address(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=endpoint,
        # Only Amazon has buckets of many regions under one name; elsewhere asking costs a request and a right.
        region=options.get("region") or (None if endpoint == AMAZON else "us-east-1"),
        path_style=None if path_style is None else _BOOLEANS[path_style],
        query=urlencode(options, safe=":/"),
    )


def credentials(environment: Mapping[str, str]) -> Credentials:
    """The keys in the environment. Raises StoreError if they are missing."""
    missing = [name for name in (ACCESS_KEY, SECRET_KEY) if not environment.get(name)]
    if missing:
        raise StoreError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set: set them to the keys of the "
            "store, on Kubernetes in the Secret of spec.stores.secretName."
        )
    return Credentials(environment[ACCESS_KEY], environment[SECRET_KEY], environment.get(SESSION_TOKEN) or None)


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise StoreError(f"The S3 endpoint {text!r} is not valid; use http://host:port or https://host.")
    return f"{parts.scheme}://{parts.netloc}"
