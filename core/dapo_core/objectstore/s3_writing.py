"""A big file on its way to S3 in parts, several at a time, read once."""

import threading
from itertools import count
from typing import BinaryIO, Final

from minio import Minio
from minio.datatypes import Part

from dapo_core.errors import StoreError
from dapo_core.objectstore.contract import Content, HashingReader
from dapo_core.parallel import parallel

# So many parts of this size are in memory for each file.
PART_BYTES: Final = 8 * 1024 * 1024
PARALLEL_PARTS: Final = 4
_MAX_PARTS: Final = 10_000


class PartedUpload:
    """`stream` as the object `name`: it is there when the last part is. Whoever is free reads the next part, so that
    neither reading nor the sum of the whole waits for the network, or the network for them."""

    def __init__(self, client: Minio, bucket: str, name: str, stream: BinaryIO, size: int) -> None:
        self._client, self._bucket, self._name = client, bucket, name
        self._reader, self._size = HashingReader(stream), size
        self._part_bytes = max(PART_BYTES, -(-size // _MAX_PARTS))
        self._reading = threading.Lock()
        self._numbers = count(1)

    def send(self) -> Content:
        """Raises the client's errors, having given up the upload, and StoreError when the file was shortened."""
        # The client has public names only for whole objects from one stream.
        started = self._client._create_multipart_upload(
            self._bucket, self._name, {"Content-Type": "application/octet-stream"}
        )
        try:
            parts = parallel(lambda _: self._send_next(started), range(self._count()), PARALLEL_PARTS)
            parts.sort(key=lambda part: part.part_number)
            self._client._complete_multipart_upload(self._bucket, self._name, started, parts)
        except BaseException:
            self._client._abort_multipart_upload(self._bucket, self._name, started)
            raise
        return self._reader.content

    def _count(self) -> int:
        return -(-self._size // self._part_bytes)

    def _send_next(self, upload_id: str) -> Part:
        with self._reading:
            number = next(self._numbers)
            data = self._reader.read(self._part_bytes)
        if len(data) != min(self._part_bytes, self._size - (number - 1) * self._part_bytes):
            raise StoreError(f"{self._name} was changed while it was stored.")
        etag = self._client._upload_part(self._bucket, self._name, data, None, upload_id, number)
        return Part(number, etag)
