"""Reading an object to its end though the connection breaks on the way."""

import io
import time
from typing import Any, Final

from minio import Minio
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from dapo_core.objectstore.address import Address
from dapo_core.objectstore.s3_faults import told

TRIES: Final = 6  # in a row, without a byte between them
_FIRST_WAIT: Final = 0.25  # seconds, doubled for each further try


class ResumingReader(io.RawIOBase):
    """One object as a raw stream. A broken connection is made again from where it broke, of the same version."""

    def __init__(self, client: Minio, address: Address, name: str, what: str) -> None:
        self._client, self._address, self._name, self._what = client, address, name, what
        self._etag: str | None = None
        self._position = 0
        self._response: BaseHTTPResponse | None = None
        self._connect()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        failures = 0
        while True:
            try:
                data = self._get().read(len(buffer))
            except (HTTPError, OSError) as error:
                failures += 1
                self._disconnect()
                if failures >= TRIES:
                    with told(self._what, self._address):
                        raise error
                time.sleep(_FIRST_WAIT * 2 ** (failures - 1))
                continue
            buffer[: len(data)] = data
            self._position += len(data)
            return len(data)

    def close(self) -> None:
        self._disconnect()
        super().close()

    def _get(self) -> BaseHTTPResponse:
        return self._response or self._connect()

    def _connect(self) -> BaseHTTPResponse:
        with told(self._what, self._address):
            self._response = self._client.get_object(
                self._address.bucket,
                self._name,
                offset=self._position,
                request_headers={"If-Match": self._etag} if self._etag else None,
            )
        self._etag = self._response.headers.get("etag")
        return self._response

    def _disconnect(self) -> None:
        if self._response is not None:
            # Closed, not returned to the pool: what is unread would have to be read first.
            self._response.close()
            self._response.release_conn()
            self._response = None
