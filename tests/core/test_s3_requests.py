"""Uploads in parts and lists of incomplete ones, by recorded answers of Amazon, Google and others."""

import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from minio.error import InvalidResponseError, S3Error
from urllib3 import HTTPResponse, PoolManager

from dapo_core.errors import StoreError
from dapo_core.objectstore.contract import CHUNK
from dapo_core.objectstore.s3 import S3Store, open_s3
from dapo_core.objectstore.s3_requests import S3Requests

KEYS = {"DAPO_S3_ACCESS_KEY": "key", "DAPO_S3_SECRET_KEY": "secret"}
AMAZON = "s3://dapo-runs/team?region=eu-central-1"
GOOGLE = "https://storage.googleapis.com"
NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
DATA = bytes(range(256)) * (3 * CHUNK // 256)
SUM = hashlib.sha256(DATA).hexdigest()


def answer(text: str = "", status: int = 200, **headers: str) -> HTTPResponse:
    return HTTPResponse(body=text.encode(), status=status, headers=headers)


class Recorded(PoolManager):
    """Answers requests in order, and remembers them."""

    def __init__(self, *answers: HTTPResponse) -> None:
        super().__init__()
        self.answers = list(answers)
        self.sent: list[tuple[str, str, Any, dict[str, str]]] = []

    def urlopen(self, method: str, url: str, redirect: bool = True, **more: Any) -> HTTPResponse:  # type: ignore[override]
        self.sent.append((method, url, more.get("body"), dict(more["headers"])))
        return self.answers.pop(0)


Stage = Callable[..., tuple[S3Requests, Recorded]]


@pytest.fixture
def stage() -> Stage:
    def made(*answers: HTTPResponse, url: str = AMAZON, **more: str) -> tuple[S3Requests, Recorded]:
        store: S3Store = open_s3(url, KEYS | more)
        http = Recorded(*answers)
        return S3Requests(store._client, store._requests._keys, http, "dapo-runs"), http

    return made


ADDRESSES = [
    pytest.param(AMAZON, "https://dapo-runs.s3.eu-central-1.amazonaws.com/", id="Amazon, the bucket in the host name"),
    pytest.param(f"{AMAZON}&pathStyle=true", "https://s3.eu-central-1.amazonaws.com/dapo-runs/", id="in the path"),
    pytest.param(f"s3://dapo-runs?endpoint={GOOGLE}", f"{GOOGLE}/dapo-runs/", id="Google"),
    pytest.param("s3://dapo-runs?endpoint=http://minio:9000", "http://minio:9000/dapo-runs/", id="MinIO"),
]


@pytest.mark.parametrize(("url", "base"), ADDRESSES)
def test_requests_go_where_the_client_would_send_them(url: str, base: str, stage: Stage) -> None:
    requests, http = stage(answer(), answer("<ListMultipartUploadsResult/>"), url=url)
    requests.put("team/a b/c+d", b"x", hashlib.sha256(b"x").hexdigest())
    requests.incomplete_uploads("team/")
    assert [url.partition("?")[0] for _, url, _, _ in http.sent] == [f"{base}team/a%20b/c%2Bd", base]


def test_a_body_is_signed_by_its_hash_and_sent_in_blocks(stage: Stage) -> None:
    """B19: the socket's timeout is for one block; for a whole part it would need 36 Mbit/s."""
    requests, http = stage(answer(etag='"tag"'), DAPO_S3_SESSION_TOKEN="token")
    assert requests.put_part("big", "upload", 3, memoryview(DATA), SUM) == '"tag"'
    method, url, body, headers = http.sent[0]
    assert (method, parse_qs(urlsplit(url).query)) == ("PUT", {"partNumber": ["3"], "uploadId": ["upload"]})
    assert b"".join(body) == DATA and max(map(len, body)) <= CHUNK
    assert headers["x-amz-content-sha256"] == SUM and headers["Content-Length"] == str(len(DATA))
    assert headers["X-Amz-Security-Token"] == "token" and "x-amz-content-sha256" in headers["Authorization"]


COMPLETIONS = [
    pytest.param(f"<Result {NAMESPACE}><ETag>x</ETag></Result>", True, id="Amazon"),
    pytest.param("<Result><ETag>x</ETag></Result>", True, id="no namespace"),
    pytest.param('  \n<?xml version="1.0"?><Result><ETag>x</ETag></Result>', True, id="after spaces"),
    pytest.param("<Error><Code>InternalError</Code></Error>", False, id="200 with an error (B1)"),
    pytest.param("  \n<Error><Code>SlowDown</Code></Error>", False, id="slow down"),
]


@pytest.mark.parametrize(("document", "complete"), COMPLETIONS)
def test_whether_an_upload_is_complete(document: str, complete: bool, stage: Stage) -> None:
    requests, http = stage(answer(document))
    assert requests.complete_upload("big", "upload", ['"a"', '"b"']) is complete
    sent = b"".join(http.sent[0][2])
    assert b'<PartNumber>2</PartNumber><ETag>"b"</ETag>' in sent


def test_incomplete_uploads_are_read_page_by_page(stage: Stage) -> None:
    """B20: Amazon lists a thousand at a time."""
    one = "<Upload><Key>team/{}</Key><UploadId>u</UploadId><Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>"
    first = f"<R {NAMESPACE}>{one.format('a')}<IsTruncated>true</IsTruncated><NextKeyMarker>team/a</NextKeyMarker>"
    first += "<NextUploadIdMarker>u</NextUploadIdMarker></R>"
    requests, http = stage(answer(first), answer(f"<R>{one.format('b')}<IsTruncated>false</IsTruncated></R>"))
    found = requests.incomplete_uploads("team/")
    assert [upload.name for upload in found] == ["team/a", "team/b"] and found[0].started == 1767323045.0
    query = parse_qs(urlsplit(http.sent[1][1]).query)
    assert query["key-marker"] == ["team/a"] and query["upload-id-marker"] == ["u"]


ERRORS = [
    pytest.param(answer("<Error><Code>NoSuchUpload</Code></Error>", 404), S3Error, id="S3's document"),
    pytest.param(answer("<html>bad gateway</html>", 502), InvalidResponseError, id="a page of a proxy"),
    pytest.param(answer("upstream", 502), InvalidResponseError, id="text of a proxy"),
    pytest.param(answer("", 403), InvalidResponseError, id="nothing"),
]


@pytest.mark.parametrize(("bad", "kind"), ERRORS)
def test_errors_are_the_clients(bad: HTTPResponse, kind: type[Exception], stage: Stage) -> None:
    requests, _ = stage(bad)
    with pytest.raises(kind):
        requests.put("a", b"", hashlib.sha256(b"").hexdigest())


def test_a_store_without_keys_is_refused() -> None:
    with pytest.raises(StoreError, match="DAPO_S3_ACCESS_KEY and DAPO_S3_SECRET_KEY are not set"):
        open_s3(AMAZON, {})
