"""The requests of S3 for which the client has no public method: uploads in parts, and lists of those left incomplete.

They are sent with the client's own address, keys, signature and errors (`Minio.get_presigned_url`, `minio.signer`),
over the same connections. The body of a request is sent in blocks, each of which has the socket's timeout for itself: a
slow line takes longer and does not fail. The server compares the body with its SHA-256, which is signed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit
from xml.etree import ElementTree as Xml

from minio import Minio
from minio.credentials.providers import Provider
from minio.error import InvalidResponseError, S3Error
from minio.signer import sign_v4_s3
from minio.time import to_amz_date
from urllib3 import BaseHTTPResponse, PoolManager

from dapo_core.objectstore.contract import CHUNK

_ANY: Final = "{*}"  # servers differ in the namespace of their answers
_EMPTY: Final = hashlib.sha256(b"").hexdigest()
Body = bytes | memoryview


@dataclass(frozen=True)
class IncompleteUpload:
    """An upload in parts that was neither completed nor aborted; `started` in Unix seconds."""

    name: str
    upload_id: str
    started: float


class S3Requests:
    """Requests to one bucket. Methods raise what the client raises."""

    def __init__(self, client: Minio, keys: Provider, http: PoolManager, bucket: str) -> None:
        self._client, self._keys, self._http, self._bucket = client, keys, http, bucket

    def put(self, name: str, data: Body, sha256: str) -> None:
        """Store an object in one request."""
        self._send("PUT", name, {}, data, sha256)

    def create_upload(self, name: str) -> str:
        """Start an upload in parts. Returns its ID."""
        answer = _document(self._send("POST", name, {"uploads": ""}))
        return answer.findtext(f"{_ANY}UploadId") or ""

    def put_part(self, name: str, upload_id: str, number: int, data: Body, sha256: str) -> str:
        """Send one part. Returns its tag, by which `complete_upload` names it."""
        answer = self._send("PUT", name, {"partNumber": str(number), "uploadId": upload_id}, data, sha256)
        return str(answer.headers.get("etag", ""))

    def complete_upload(self, name: str, upload_id: str, tags: Sequence[str]) -> bool:
        """Make the object of its parts, by their tags in order. Returns whether the server says that there is one.

        Amazon sends the status before it has assembled the object: 200 with an error document is a failure.
        """
        document = Xml.Element("CompleteMultipartUpload")
        for number, tag in enumerate(tags, 1):
            part = Xml.SubElement(document, "Part")
            Xml.SubElement(part, "PartNumber").text = str(number)
            Xml.SubElement(part, "ETag").text = tag
        data = Xml.tostring(document)
        try:
            answer = self._send("POST", name, {"uploadId": upload_id}, data, hashlib.sha256(data).hexdigest())
        except S3Error as error:
            # The request was repeated after its answer was lost, as where assembling takes longer than a proxy waits:
            # most servers have then forgotten the upload.
            if error.code != "NoSuchUpload" or self._tag(name) != _tag_of_parts(tags):
                raise
            return True
        return _document(answer).find(f"{_ANY}ETag") is not None

    def _tag(self, name: str) -> str | None:
        """The tag of an object; None if there is none."""
        try:
            return str(self._send("HEAD", name, {}).headers.get("etag", "")).strip('"')
        except InvalidResponseError:
            return None

    def abort_upload(self, name: str, upload_id: str) -> None:
        """Delete the parts of an upload."""
        self._send("DELETE", name, {"uploadId": upload_id})

    def incomplete_uploads(self, prefix: str) -> list[IncompleteUpload]:
        """All uploads in progress of objects whose name starts with `prefix`."""
        found: list[IncompleteUpload] = []
        marker: dict[str, str] = {}
        while True:
            answer = _document(self._send("GET", None, {"uploads": "", "prefix": prefix, **marker}))
            found += [_upload(element) for element in answer.iterfind(f"{_ANY}Upload")]
            key = answer.findtext(f"{_ANY}NextKeyMarker")
            if answer.findtext(f"{_ANY}IsTruncated") != "true" or not key:
                return found
            marker = {"key-marker": key, "upload-id-marker": answer.findtext(f"{_ANY}NextUploadIdMarker") or ""}

    def _send(
        self, method: str, name: str | None, query: Mapping[str, str], data: Body = b"", sha256: str = _EMPTY
    ) -> BaseHTTPResponse:
        """`name` None: of the bucket itself."""
        base, region = self._address(name)
        url = urlsplit(base + ("?" + urlencode(sorted(query.items()), quote_via=quote, safe="") if query else ""))
        keys, date = self._keys.retrieve(), datetime.now(UTC)
        headers: dict[str, Any] = {
            "Host": url.netloc,
            "Content-Length": str(len(data)),
            "x-amz-content-sha256": sha256,
            "x-amz-date": to_amz_date(date),
        }
        if keys.session_token:
            headers["X-Amz-Security-Token"] = keys.session_token
        signed = sign_v4_s3(
            method=method, url=url, region=region, headers=headers, credentials=keys, content_sha256=sha256, date=date
        )
        view = memoryview(data)
        blocks = [view[begin : begin + CHUNK] for begin in range(0, len(view), CHUNK)]
        answer = self._http.urlopen(method, url.geturl(), body=blocks or None, headers=signed)
        if answer.status in (200, 204):
            return answer
        body = answer.data or b""
        if b"<Error" in body:
            raise S3Error.fromxml(answer)
        # A proxy's page, or nothing.
        raise InvalidResponseError(answer.status, answer.headers.get("content-type"), body.decode(errors="replace"))

    def _address(self, name: str | None) -> tuple[str, str]:
        """The URL of an object or of the bucket, and the region, as the client would address them."""
        url = urlsplit(self._client.get_presigned_url("GET", self._bucket, name or "any"))
        path = url.path if name else url.path.removesuffix("any")
        region = parse_qs(url.query)["X-Amz-Credential"][0].split("/")[-3]
        return f"{url.scheme}://{url.netloc}{path}", region


def _tag_of_parts(tags: Sequence[str]) -> str:
    """The tag of the object that consists of parts with these tags, each an MD5 ("" where it is something else)."""
    try:
        sums = b"".join(bytes.fromhex(tag.strip('"')) for tag in tags)
    except ValueError:
        return ""
    return f"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(tags)}"


def _document(answer: BaseHTTPResponse) -> Xml.Element:
    # Amazon sends spaces while it is working.
    return Xml.fromstring(answer.data.strip())


def _upload(element: Xml.Element) -> IncompleteUpload:
    texts = (element.findtext(f"{_ANY}{name}") for name in ("Key", "UploadId", "Initiated"))
    name, upload_id, started = (text or "" for text in texts)
    return IncompleteUpload(name, upload_id, datetime.fromisoformat(started).timestamp() if started else 0.0)
