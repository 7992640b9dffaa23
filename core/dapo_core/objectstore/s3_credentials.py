"""Where the keys of an S3 store come from, and that they are renewed while a process runs."""

from collections.abc import Mapping
from configparser import Error as FormatError
from typing import Final

from minio.credentials.credentials import Credentials
from minio.credentials.providers import AWSConfigProvider, IamAwsProvider, Provider, StaticProvider
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError
from urllib3.util import Retry, Timeout

from dapo_core.errors import StoreError, first_line
from dapo_core.objectstore import s3_address as addresses
from dapo_core.objectstore.contract import StoreUnreachableError

SOURCE: Final = "DAPO_S3_CREDENTIALS"
KEYS_FILE: Final = "AWS_SHARED_CREDENTIALS_FILE"
# Set by Amazon's webhooks and agents for roles of service accounts (IRSA), EKS Pod Identity and ECS.
_ROLES: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
_STS: Final = "AWS_ENDPOINT_URL_STS"


def provider(environment: Mapping[str, str]) -> Provider:
    """Where the keys come from, the first of: the `DAPO_S3_*` variables; a file of keys, read again whenever they are
    needed; the role that the variables of Amazon's container platforms name; with `DAPO_S3_CREDENTIALS=instance`, the
    machine's role. Raises StoreError if there is none."""
    source = environment.get(SOURCE)
    if source not in (None, "", "instance"):
        raise StoreError(f"{SOURCE} is {source!r}, which is not known: use instance, or unset it.")
    if not any(environment.get(name) for name in (addresses.ACCESS_KEY, addresses.SECRET_KEY)):
        if path := environment.get(KEYS_FILE):
            profile = environment.get("AWS_PROFILE")
            return _Explained(AWSConfigProvider(path, profile), f"{KEYS_FILE} {path}, profile {profile or 'default'}")
        if name := next((name for name in _ROLES if environment.get(name)), None):
            return _Explained(_role(environment), f"the role of {name}")
        if source:
            return _Explained(_role(environment), "the role of this machine")
    keys = addresses.credentials(environment)
    return StaticProvider(keys.access_key, keys.secret_key, keys.session_token)


def _role(environment: Mapping[str, str]) -> Provider:
    """The client reads the variables that name the role; it fetches new keys when the old ones expire."""
    http = PoolManager(timeout=Timeout(connect=5.0, read=20.0), retries=Retry(total=2, backoff_factor=0.2))
    by_token = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    return IamAwsProvider(custom_endpoint=(environment.get(_STS) or None) if by_token else None, http_client=http)


class _Explained(Provider):
    """Keys of another provider, whose errors name the source."""

    def __init__(self, source: Provider, name: str) -> None:
        self._source, self._name = source, name

    def retrieve(self) -> Credentials:
        try:
            return self._source.retrieve()
        except HTTPError as error:
            raise StoreUnreachableError(
                f"{self._name} cannot be asked for the store's keys: {first_line(error)}; try again later."
            ) from error
        except (ValueError, KeyError, OSError, FormatError) as error:
            raise StoreError(
                f"{self._name} has no keys for the store: {first_line(error)}; correct it, or set "
                f"{addresses.ACCESS_KEY} and {addresses.SECRET_KEY}."
            ) from error
