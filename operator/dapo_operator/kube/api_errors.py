"""Errors of the Kubernetes API.

ApiError
 +- NotFoundError       404: the object is gone, or its kind is not installed
 +- ConflictError       409: the object changed meanwhile, read it again
 +- ExistsError         409: an object of that name exists
 +- RefusedError        400, 403, 422: rejected by quota, admission or validation
 +- GoneError           410: the version to watch from is too old, list again
 +- BusyError           429: too many requests, retry later
 +- UnreachableError    no response, or a 5xx
     +- StreamCutError  an established watch was cut
"""

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """Base of all. `code` is the HTTP status, 0 when there was no response; `reason` is that of Kubernetes' Status;
    `retry_after` is in seconds."""

    def __init__(self, message: str, code: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        self.message, self.code, self.reason, self.retry_after = message, code, reason, retry_after
        super().__init__(message)


class NotFoundError(ApiError):
    """404."""


class ConflictError(ApiError):
    """409, a failed optimistic lock."""


class ExistsError(ApiError):
    """409, the name is taken."""


class RefusedError(ApiError):
    """400, 403 or 422."""


class GoneError(ApiError):
    """410."""


class BusyError(ApiError):
    """429."""


class UnreachableError(ApiError):
    """No response, or a server error."""


class StreamCutError(UnreachableError):
    """A watch was cut after it had been established, by a proxy or a restart: the next one continues it."""


_BY_CODE: Mapping[int, type[ApiError]] = {
    400: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: RefusedError,
    429: BusyError,
}


def error_of(code: int, status: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """The error for a response with this HTTP status and this Status object."""
    reason, message = str(status.get("reason", "")), str(status.get("message", "")) or f"HTTP {code}"
    kind = (
        ExistsError if reason == "AlreadyExists" else _BY_CODE.get(code, UnreachableError if code >= 500 else ApiError)
    )
    return kind(message, code, reason, retry_after)
