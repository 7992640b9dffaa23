"""A model of the S3 servers that cannot be started here, in memory: it answers as their documentation says they do.

`Manners` has what differs between them. Signatures are not compared; the hashes of bodies are.
"""

import hashlib
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree as Xml
from xml.sax.saxutils import escape

MEGABYTE: Final = 1024 * 1024
_NAMESPACE: Final = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass(frozen=True)
class Manners:
    """What differs between servers. `every` counts requests, `completions` those that complete an upload in parts."""

    delete_absent: int = 204
    """Status for the deletion of an object that does not exist; with 404, NoSuchKey."""
    least_part_bytes: int = 5 * MEGABYTE
    """Of each part but the last; EntityTooSmall when the upload is completed."""
    equal_parts: bool = False
    """All parts but the last have the same size; InvalidPart when the upload is completed."""
    page: int = 1000
    """Most objects in one answer to a list."""
    spaces: int = 0
    """Before the document of a completion, sent while it is being assembled."""
    tags_are_sums: bool = True
    """Whether tags are MD5 sums, which they are not where the bucket is encrypted with a key of its own."""
    completed_again: bool = False
    """Whether a completion that is repeated succeeds; otherwise NoSuchUpload."""
    slow_down_every: int = 0
    """Each so-manieth request is answered 503 SlowDown."""
    failed_completions: int = 0
    """So many completions are answered 200 with an error, and make no object."""
    lost_completions: int = 0
    """So many completions make the object, and their connection breaks before the answer."""


AMAZON: Final = Manners(spaces=3, completed_again=True)
GOOGLE: Final = Manners(delete_absent=404)
CLOUDFLARE: Final = Manners(equal_parts=True)


@dataclass
class _Object:
    data: bytes
    tag: str
    changed: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass
class _Upload:
    bucket: str
    name: str
    parts: dict[int, bytes] = field(default_factory=dict)
    tags: dict[int, str] = field(default_factory=dict)
    done: bool = False


class _RefusedError(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _LostError(Exception):
    """The answer does not arrive."""


class S3Model:
    """`url(bucket)` with `environment` opens a store in it, as with a real server. `close` ends it."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.objects: dict[tuple[str, str], _Object] = {}
        self.buckets: set[str] = set()
        self._uploads: dict[str, _Upload] = {}
        self._lock = threading.Lock()
        self._requests = 0
        self._completions = 0
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                model.serve(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        return {"DAPO_S3_ACCESS_KEY": "key", "DAPO_S3_SECRET_KEY": "secret"}

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.buckets.add(name)
        return name

    def url(self, bucket: str, prefix: str = "runs", endpoint: str | None = None) -> str:
        return f"s3://{bucket}/{prefix}?" + urlencode({"endpoint": endpoint or self.endpoint}, safe=":/")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        try:
            with self._lock:
                status, data, headers = self._answer(request, body)
        except _RefusedError as refused:
            status, headers = refused.status, {"Content-Type": "application/xml"}
            data = f"<Error><Code>{refused.code}</Code><Message>no</Message></Error>".encode()
        except _LostError:
            request.close_connection = True
            return
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(b"" if request.command == "HEAD" else data)

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        self._requests += 1
        if self.manners.slow_down_every and self._requests % self.manners.slow_down_every == 0:
            raise _RefusedError(503, "SlowDown")
        claimed = request.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        if claimed not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            raise _RefusedError(400, "XAmzContentSHA256Mismatch")
        parts = urlsplit(request.path)
        bucket, _, name = unquote(parts.path.lstrip("/")).partition("/")
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if bucket not in self.buckets:
            raise _RefusedError(404, "NoSuchBucket")
        if "uploads" in query or "uploadId" in query:
            return self._in_parts(request.command, bucket, name, query, body)
        if request.command == "GET" and not name:
            return 200, self._listed(bucket, query), {}
        if request.command == "PUT":
            stored = self.objects[bucket, name] = _Object(body, _sum(body))
            return 200, b"", {"ETag": f'"{stored.tag}"'}
        found = self.objects.get((bucket, name))
        if request.command == "DELETE":
            if found is None and self.manners.delete_absent == 404:
                raise _RefusedError(404, "NoSuchKey")
            self.objects.pop((bucket, name), None)
            return 204, b"", {}
        if found is None:
            raise _RefusedError(404, "NoSuchKey")
        return _read(found, request)

    def _in_parts(
        self, method: str, bucket: str, name: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        if method == "GET":
            return 200, self._incomplete(bucket, query.get("prefix", "")), {}
        if "uploads" in query:
            started = uuid.uuid4().hex
            self._uploads[started] = _Upload(bucket, name)
            return 200, f"<R {_NAMESPACE}><UploadId>{started}</UploadId></R>".encode(), {}
        upload = self._uploads.get(query["uploadId"])
        if upload is None:
            raise _RefusedError(404, "NoSuchUpload")
        if method == "PUT":
            number = int(query["partNumber"])
            if not 1 <= number <= 10_000:
                raise _RefusedError(400, "InvalidArgument")
            upload.parts[number] = body
            upload.tags[number] = _sum(body) if self.manners.tags_are_sums else uuid.uuid4().hex
            return 200, b"", {"ETag": f'"{upload.tags[number]}"'}
        if method == "DELETE":
            del self._uploads[query["uploadId"]]
            return 204, b"", {}
        return 200, self._completed(query["uploadId"], upload, body), {"Content-Type": "application/xml"}

    def _completed(self, started: str, upload: _Upload, body: bytes) -> bytes:
        self._completions += 1
        if self._completions <= self.manners.failed_completions:
            return b" " * self.manners.spaces + b"<Error><Code>InternalError</Code></Error>"
        if not upload.done:
            named = [(int(_text(part, "PartNumber")), _text(part, "ETag").strip('"')) for part in Xml.fromstring(body)]
            if [number for number, _ in named] != sorted(upload.parts) or dict(named) != upload.tags:
                raise _RefusedError(400, "InvalidPart")
            sizes = [len(upload.parts[number]) for number, _ in named]
            if any(size < self.manners.least_part_bytes for size in sizes[:-1]):
                raise _RefusedError(400, "EntityTooSmall")
            if self.manners.equal_parts and len(set(sizes[:-1])) > 1:
                raise _RefusedError(400, "InvalidPart")
            sums = b"".join(bytes.fromhex(tag) for _, tag in named)
            data = b"".join(upload.parts[number] for number, _ in named)
            tag = f"{_sum(sums)}-{len(named)}" if self.manners.tags_are_sums else uuid.uuid4().hex
            self.objects[upload.bucket, upload.name] = _Object(data, tag)
            upload.done = True
            if not self.manners.completed_again:
                del self._uploads[started]
        if self._completions <= self.manners.failed_completions + self.manners.lost_completions:
            raise _LostError
        tag = self.objects[upload.bucket, upload.name].tag
        document = f"<CompleteMultipartUploadResult {_NAMESPACE}><ETag>&quot;{tag}&quot;</ETag>"
        return b" " * self.manners.spaces + f"{document}</CompleteMultipartUploadResult>".encode()

    def _listed(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        divider = query.get("delimiter", "")
        names = sorted(
            {
                _folded(name, len(prefix), divider)
                for at, name in self.objects
                if at == bucket and name.startswith(prefix)
            }
        )
        names = [name for name in names if name > after]
        shown, rest = names[: self.manners.page], names[self.manners.page :]
        encode = quote if query.get("encoding-type") == "url" else escape
        text = f"<ListBucketResult {_NAMESPACE}><IsTruncated>{str(bool(rest)).lower()}</IsTruncated>"
        text += f"<Name>{bucket}</Name><EncodingType>{query.get('encoding-type', '')}</EncodingType>"
        text += f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if rest else ""
        for name in shown:
            found = self.objects.get((bucket, name))
            if found is None:
                text += f"<CommonPrefixes><Prefix>{encode(name)}</Prefix></CommonPrefixes>"
                continue
            text += f"<Contents><Key>{encode(name)}</Key><Size>{len(found.data)}</Size>"
            text += (
                f"<LastModified>{_time(found.changed)}</LastModified><ETag>&quot;{found.tag}&quot;</ETag></Contents>"
            )
        return f"{text}</ListBucketResult>".encode()

    def _incomplete(self, bucket: str, prefix: str) -> bytes:
        text = f"<ListMultipartUploadsResult {_NAMESPACE}><IsTruncated>false</IsTruncated>"
        for started, upload in self._uploads.items():
            if upload.bucket == bucket and upload.name.startswith(prefix) and not upload.done:
                text += f"<Upload><Key>{escape(upload.name)}</Key><UploadId>{started}</UploadId>"
                text += f"<Initiated>{_time(datetime.now(UTC))}</Initiated></Upload>"
        return f"{text}</ListMultipartUploadsResult>".encode()


def _read(found: _Object, request: BaseHTTPRequestHandler) -> tuple[int, bytes, dict[str, str]]:
    headers = {"ETag": f'"{found.tag}"', "Last-Modified": format_datetime(found.changed, usegmt=True)}
    if (wanted := request.headers.get("If-Match")) and wanted.strip('"') != found.tag:
        raise _RefusedError(412, "PreconditionFailed")
    if asked := request.headers.get("Range"):
        begin = int(asked.removeprefix("bytes=").partition("-")[0])
        last = len(found.data) - 1
        return 206, found.data[begin:], headers | {"Content-Range": f"bytes {begin}-{last}/{last + 1}"}
    return 200, found.data, headers


def _folded(name: str, prefix: int, divider: str) -> str:
    """A name as it is listed: up to the divider, if one follows the prefix of this length."""
    end = name.find(divider, prefix) if divider else -1
    return name if end < 0 else name[: end + len(divider)]


def _sum(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _text(element: Xml.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


@contextmanager
def s3_model(manners: Manners) -> Iterator[S3Model]:
    """A server of such manners, for as long as the context lasts."""
    model = S3Model(manners)
    try:
        yield model
    finally:
        model.close()
