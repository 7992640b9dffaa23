"""The client's errors as StoreError, in sentences that name the cause and the remedy."""

import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError, MaxRetryError, NameResolutionError, NewConnectionError, ResponseError
from urllib3.exceptions import SSLError as TlsError
from urllib3.exceptions import TimeoutError as HttpTimeout

from dapo_core.errors import StoreError
from dapo_core.objectstore import s3_address as names
from dapo_core.objectstore.contract import ObjectNotFoundError, StoreUnreachableError
from dapo_core.objectstore.s3_address import Address


class Explanation(NamedTuple):
    """Cause and remedy; {bucket}, {endpoint} and {where} are filled in. `kind` StoreUnreachableError: it may pass."""

    cause: str
    remedy: str
    kind: type[StoreError] = StoreError


_KEYS: Final = f"{names.ACCESS_KEY} and {names.SECRET_KEY}"
_LATER: Final = "try again later"
_EXPIRED: Final = Explanation(
    "the credentials have expired",
    f"put new ones into {_KEYS} (on Kubernetes, the Secret of spec.stores.secretName) and start again",
)
_UNKNOWN_KEY: Final = Explanation("the server does not know these credentials", f"correct {_KEYS}")
_TOKEN: Final = Explanation("the session token is not valid", f"correct {names.SESSION_TOKEN}, or unset it")
_REGION: Final = Explanation("the bucket is in another region", "add ?region=... to the URL")
_FULL: Final = Explanation("the server's disks are full", "free space, or keep fewer checkpoints (keepLast, keepBest)")
_QUOTA: Final = Explanation("the bucket's quota is reached", "raise it, or keep fewer checkpoints (keepLast, keepBest)")
_BUSY: Final = Explanation("the server is overloaded", _LATER, StoreUnreachableError)

# By the code of S3's error document, Amazon's and MinIO's.
CODES: Final[dict[str, Explanation]] = {
    "NoSuchBucket": Explanation("the bucket {bucket} does not exist at {endpoint}", "create it, or correct the URL"),
    "InvalidBucketName": Explanation("'{bucket}' is not a valid bucket name", "correct the URL"),
    "AccessDenied": Explanation(
        "the credentials do not permit this",
        "grant them s3:ListBucket on {bucket}, and s3:GetObject, s3:PutObject, s3:DeleteObject and "
        "s3:AbortMultipartUpload on the objects under {where}",
    ),
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidToken": _TOKEN,
    "InvalidTokenId": _TOKEN,
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "SignatureDoesNotMatch": Explanation("the secret key does not match the access key", f"correct {_KEYS}"),
    "RequestTimeTooSkewed": Explanation("this machine's clock is wrong", "set it"),
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "XMinioStorageFull": _FULL,
    "InsufficientStorage": _FULL,
    "XMinioAdminBucketQuotaExceeded": _QUOTA,
    "QuotaExceeded": _QUOTA,
    "SlowDown": _BUSY,
    "SlowDownRead": _BUSY,
    "SlowDownWrite": _BUSY,
    "ServiceUnavailable": _BUSY,
    "XMinioServerNotInitialized": Explanation("the server is starting", _LATER, StoreUnreachableError),
    "PreconditionFailed": Explanation("it was replaced while it was read", "try again"),
}


@contextmanager
def explained(what: str, address: Address, absent: type[StoreError] = ObjectNotFoundError) -> Iterator[None]:
    """Raises every error of the client as a StoreError that begins with `what`; a missing object as `absent`."""
    try:
        yield
    except S3Error as error:
        if error.code == "NoSuchKey":
            raise absent(f"{what}: there is no such object.") from error
        raise _error(what, _by_code(error), address) from error
    except (MinioException, HTTPError, OSError, ValueError) as error:
        raise _error(what, _by_type(error), address) from error


def _error(what: str, explanation: Explanation, address: Address) -> StoreError:
    facts = {"bucket": address.bucket, "endpoint": address.endpoint, "where": address.where}
    cause, remedy = (text.format(**facts) for text in (explanation.cause, explanation.remedy))
    return explanation.kind(f"{what}: {cause}; {remedy}.")


def _by_code(error: S3Error) -> Explanation:
    if (explanation := CODES.get(str(error.code))) is not None:
        return explanation
    return Explanation(_literal(f"{error.code}, {error.message}".rstrip(". ")), "see the server's log")


def _by_type(error: Exception) -> Explanation:
    """Of an error without S3's document: the network's, TLS's, a proxy's, or this machine's."""
    cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    if isinstance(cause, ResponseError):
        return _BUSY
    if isinstance(cause, TlsError | ssl.SSLError):
        return Explanation(
            f"the certificate of {{endpoint}} is not trusted ({_first_line(cause)})",
            f"set {names.CA_FILE} to the file of its certificate authority",
        )
    if isinstance(cause, NameResolutionError | NewConnectionError):
        return Explanation(
            "{endpoint} cannot be reached", "correct the endpoint, or start the server", StoreUnreachableError
        )
    if isinstance(cause, HttpTimeout):
        return Explanation("{endpoint} does not answer in time", _LATER, StoreUnreachableError)
    if isinstance(cause, HTTPError | ConnectionError):
        return Explanation(
            f"the connection to {{endpoint}} broke ({_first_line(cause)})", _LATER, StoreUnreachableError
        )
    if isinstance(cause, ServerError | InvalidResponseError):
        return _by_status(cause)
    if isinstance(cause, OSError):
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = _literal((cause.strerror or str(cause)).lower())
        return Explanation(reason, "free some space" if full else "check the local file")
    return Explanation(_first_line(cause), "correct the URL")


def _by_status(error: ServerError | InvalidResponseError) -> Explanation:
    status = error.status_code if isinstance(error, ServerError) else error._code
    if status in (429, 503):
        return _BUSY
    if status == 507:
        return _FULL
    return Explanation(
        f"{{endpoint}} answers {status}", "check that this is the endpoint of an S3 server, and whether http or https"
    )


def _first_line(error: BaseException) -> str:
    return _literal(next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip("."))


def _literal(text: str) -> str:
    """`text` as `str.format` leaves it alone."""
    return text.replace("{", "{{").replace("}", "}}")
