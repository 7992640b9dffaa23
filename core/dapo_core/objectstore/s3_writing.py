"""A big file on its way to S3 in parts, several at a time, read once and summed once."""

import hashlib
import os
from typing import Any, BinaryIO, Final

from minio import Minio
from minio.datatypes import Part

from dapo_core.errors import StoreError
from dapo_core.objectstore.contract import CHUNK, Content, of_parts
from dapo_core.parallel import parallel

# So many parts are in memory for each file. More make nothing faster, and take more of the processors from training.
PARALLEL_PARTS: Final = 2
_SUM: Final = "x-amz-content-sha256"


class SummedClient(Minio):
    """A client that signs a part by the sum that its sender made of it. It would make one more, over TLS an MD5, which
    takes longer than all the rest of sending it."""

    def _build_headers(self, host: str, headers: Any = None, body: Any = None, creds: Any = None) -> Any:
        known = (headers or {}).get(_SUM)
        if known is None:
            return super()._build_headers(host, headers, body, creds)
        built, date = super()._build_headers(host, headers, None, creds)
        return built | {_SUM: known, "Content-Length": str(len(body))}, date


class PartedUpload:
    """`stream` as the object `name`: it is there when the last part is. The server checks each part's sum when it takes
    it, and of these sums consists that of the file."""

    def __init__(self, client: Minio, bucket: str, name: str, stream: BinaryIO, size: int, part_bytes: int) -> None:
        self._client, self._bucket, self._name = client, bucket, name
        self._file, self._size, self._part_bytes = stream.fileno(), size, part_bytes
        count = -(-size // part_bytes)
        self._numbers = range(1, count + 1)
        # Used again: to ask the system for new memory takes as long as to fill it.
        self._buffers = [bytearray(part_bytes) for _ in range(min(count, PARALLEL_PARTS))]

    def send(self) -> Content:
        """Raises the client's errors, having given up the upload, and StoreError when the file was shortened."""
        # The client has public names only for whole objects from one stream.
        started = self._client._create_multipart_upload(
            self._bucket, self._name, {"Content-Type": "application/octet-stream"}
        )
        try:
            sent = parallel(lambda number: self._send(started, number), self._numbers, PARALLEL_PARTS)
            self._client._complete_multipart_upload(self._bucket, self._name, started, [part for part, _ in sent])
        except BaseException:
            self._client._abort_multipart_upload(self._bucket, self._name, started)
            raise
        return of_parts([content for _, content in sent], self._part_bytes)

    def _send(self, upload_id: str, number: int) -> tuple[Part, Content]:
        begin = (number - 1) * self._part_bytes
        buffer = self._buffers.pop()  # atomic, as is `append`
        try:
            data: Any = memoryview(buffer)[: min(self._part_bytes, self._size - begin)]
            content = self._read(data, begin)
            sum_of_it: Any = {_SUM: content.sha256}
            etag = self._client._upload_part(self._bucket, self._name, data, sum_of_it, upload_id, number)
            return Part(number, etag), content
        finally:
            self._buffers.append(buffer)

    def _read(self, data: memoryview, begin: int) -> Content:
        """Fill `data` with what the file has from `begin` on."""
        digest, done = hashlib.sha256(), 0
        while done < len(data):
            block = data[done : done + CHUNK]
            length = os.preadv(self._file, [block], begin + done)
            if length == 0:
                raise StoreError(f"{self._name} was changed while it was stored.")
            digest.update(block[:length])
            done += length
        return Content(done, digest.hexdigest())
