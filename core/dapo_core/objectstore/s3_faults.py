"""What goes wrong with S3, as sentences that name the cause and the remedy."""

import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError, MaxRetryError, NameResolutionError, NewConnectionError, ResponseError
from urllib3.exceptions import SSLError as TlsError
from urllib3.exceptions import TimeoutError as HttpTimeout

from dapo_core.errors import StoreError
from dapo_core.objectstore import address as names
from dapo_core.objectstore.address import Address
from dapo_core.objectstore.contract import ObjectNotFoundError, StoreUnreachableError

_KEYS: Final = f"{names.ACCESS_KEY} and {names.SECRET_KEY}"
_EXPIRED: Final = (
    "the credentials have expired",
    f"put new ones into {_KEYS} (on Kubernetes, the Secret of spec.stores.secretName) and start again",
)
_UNKNOWN_KEY: Final = ("the server does not know these credentials", f"correct {_KEYS}")
_FULL: Final = ("the server's disks are full", "free some space, or keep fewer checkpoints (keepLast, keepBest)")
_QUOTA: Final = ("the bucket's quota is reached", "raise it, or keep fewer checkpoints (keepLast, keepBest)")
_LATER: Final = "try again later"
_START: Final = "correct the endpoint, or start the server"
_WAIT: Final = (_LATER, _START)  # remedies that may come by themselves
_BUSY: Final = ("the server is overloaded", _LATER)

# By the code of S3's error document, Amazon's and MinIO's.
CODES: Final[dict[str, tuple[str, str]]] = {
    "NoSuchBucket": ("the bucket {bucket} does not exist at {endpoint}", "create it, or correct the URL"),
    "InvalidBucketName": ("{bucket} can be no bucket's name", "correct the URL"),
    "AccessDenied": (
        "the credentials may not do this",
        "grant them s3:ListBucket on {bucket}, and s3:GetObject, s3:PutObject, s3:DeleteObject and "
        "s3:AbortMultipartUpload on what lies under {where}",
    ),
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidToken": ("the session token is not valid", f"correct {names.SESSION_TOKEN}, or leave it out"),
    "InvalidTokenId": ("the session token is not valid", f"correct {names.SESSION_TOKEN}, or leave it out"),
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "SignatureDoesNotMatch": ("the secret key does not fit the access key", f"correct {_KEYS}"),
    "RequestTimeTooSkewed": ("this machine's clock is wrong", "set it"),
    "AuthorizationHeaderMalformed": ("the bucket is of another region", "add ?region=... to the URL"),
    "PermanentRedirect": ("the bucket is of another region", "add ?region=... to the URL"),
    "XMinioStorageFull": _FULL,
    "InsufficientStorage": _FULL,
    "XMinioAdminBucketQuotaExceeded": _QUOTA,
    "QuotaExceeded": _QUOTA,
    "SlowDown": _BUSY,
    "SlowDownRead": _BUSY,
    "SlowDownWrite": _BUSY,
    "ServiceUnavailable": _BUSY,
    "XMinioServerNotInitialized": ("the server is starting", _LATER),
    "PreconditionFailed": ("it was replaced while it was read", "try again"),
}


@contextmanager
def told(what: str, address: Address, absent: type[StoreError] = ObjectNotFoundError) -> Iterator[None]:
    """Every error of the client as a StoreError; an object that is not there as `absent`."""
    try:
        yield
    except S3Error as error:
        if error.code == "NoSuchKey":
            raise absent(f"{what}: there is no such object.") from error
        raise _told(what, _of_code(error, address)) from error
    except (MinioException, HTTPError, OSError, ValueError) as error:
        raise _told(what, _of_error(error, address)) from error


def _told(what: str, reason: tuple[str, str]) -> StoreError:
    cause, remedy = reason
    kind = StoreUnreachableError if remedy in _WAIT else StoreError
    return kind(f"{what}: {cause}; {remedy}.")


def _of_code(error: S3Error, address: Address) -> tuple[str, str]:
    cause, remedy = CODES.get(str(error.code), (f"{error.code}, {error.message}".rstrip(". "), "see the server's log"))
    facts = {"bucket": address.bucket, "endpoint": address.endpoint, "where": address.where}
    return (cause.format(**facts), remedy.format(**facts)) if str(error.code) in CODES else (cause, remedy)


def _of_error(error: Exception, address: Address) -> tuple[str, str]:
    """Of an error without S3's document: the network's, TLS's, a proxy's, or this machine's."""
    cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    if isinstance(cause, ResponseError):
        return _BUSY
    if isinstance(cause, TlsError | ssl.SSLError):
        return (
            f"the certificate of {address.endpoint} is not trusted ({_first_line(cause)})",
            f"name the file of its authority in {names.CA_FILE}",
        )
    if isinstance(cause, NameResolutionError | NewConnectionError):
        return f"{address.endpoint} can not be reached", _START
    if isinstance(cause, HttpTimeout):
        return f"{address.endpoint} does not answer in time", _LATER
    if isinstance(cause, HTTPError | ConnectionError):
        return f"the connection to {address.endpoint} broke ({_first_line(cause)})", _LATER
    if isinstance(cause, ServerError | InvalidResponseError):
        return _of_status(cause, address)
    if isinstance(cause, OSError):
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT)
        return (cause.strerror or str(cause)).lower(), "free some space" if full else "see to the local file"
    return _first_line(cause), "correct the URL"


def _of_status(error: ServerError | InvalidResponseError, address: Address) -> tuple[str, str]:
    status = error.status_code if isinstance(error, ServerError) else error._code
    if status in (429, 503):
        return _BUSY
    if status == 507:
        return _FULL
    return f"{address.endpoint} answers {status}", "see that this is the endpoint of an S3 server, http or https"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
