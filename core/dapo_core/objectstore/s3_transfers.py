"""Large objects on their way: read to the end although the connection breaks, and sent in parts, several at a time."""

import hashlib
import io
import os
import random
import time
from contextlib import suppress
from typing import Any, BinaryIO, Final

from minio import Minio
from minio.error import MinioException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from dapo_core.backoff import Backoff
from dapo_core.errors import StoreError
from dapo_core.objectstore.contract import CHUNK, Content, StoreUnreachableError, of_parts
from dapo_core.objectstore.s3_address import Address
from dapo_core.objectstore.s3_errors import explained
from dapo_core.objectstore.s3_requests import S3Requests
from dapo_core.parallel import parallel

# Parts in memory for each file. More are not faster, and take more CPU time from training.
PARALLEL_PARTS: Final = 2
TRIES: Final = 6  # in a row, without a byte in between
BACKOFF: Final = Backoff(0.25, 8.0)


class ResumingReader(io.RawIOBase):
    """One object as a raw stream. After a broken connection it resumes there, with the same version."""

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
                    with explained(self._what, self._address):
                        raise error
                time.sleep(BACKOFF.delay(failures, random.random()))
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
        with explained(self._what, self._address):
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
            # Closed, not returned to the pool, which would need the rest to be read first.
            self._response.close()
            self._response.release_conn()
            self._response = None


class PartedUpload:
    """Sends `stream` as the object `name`. The server checks the hash of each part, and the file's hash is made of
    those."""

    def __init__(self, requests: S3Requests, name: str, stream: BinaryIO, size: int, part_bytes: int) -> None:
        self._requests, self._name = requests, name
        self._file, self._size, self._part_bytes = stream.fileno(), size, part_bytes
        count = -(-size // part_bytes)
        self._numbers = range(1, count + 1)
        # Reused: requesting new memory from the system takes as long as filling it.
        self._buffers = [bytearray(part_bytes) for _ in range(min(count, PARALLEL_PARTS))]

    def send(self) -> Content:
        """Returns what was sent. Raises the client's errors, after aborting the upload, and StoreError for a truncated
        file."""
        started = self._requests.create_upload(self._name)
        try:
            sent = parallel(lambda number: self._send(started, number), self._numbers, PARALLEL_PARTS)
            if not self._requests.complete_upload(self._name, started, [tag for tag, _ in sent]):
                raise StoreUnreachableError(
                    f"{self._name} cannot be written: the server did not complete the upload of its parts; try again "
                    "later."
                )
        except BaseException:
            with suppress(MinioException, HTTPError):  # why it failed is the error to report; a sweep finds the parts
                self._requests.abort_upload(self._name, started)
            raise
        return of_parts([content for _, content in sent], self._part_bytes)

    def _send(self, upload_id: str, number: int) -> tuple[str, Content]:
        begin = (number - 1) * self._part_bytes
        buffer = self._buffers.pop()  # atomic, as is `append`
        try:
            data = memoryview(buffer)[: min(self._part_bytes, self._size - begin)]
            content = self._read(data, begin)
            return self._requests.put_part(self._name, upload_id, number, data, content.sha256), content
        finally:
            self._buffers.append(buffer)

    def _read(self, data: memoryview, begin: int) -> Content:
        """Fills `data` from the file's offset `begin`, and hashes it."""
        digest, done = hashlib.sha256(), 0
        while done < len(data):
            block = data[done : done + CHUNK]
            length = os.preadv(self._file, [block], begin + done)
            if length == 0:
                raise StoreError(f"{self._name} was truncated while it was being stored.")
            digest.update(block[:length])
            done += length
        return Content(done, digest.hexdigest())
