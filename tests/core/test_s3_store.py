"""S3 besides the contract: big files in parts, bad servers, and sentences that name the remedy."""

import hashlib
import json
import os
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from minio.error import S3Error
from servers.minio import MinioServer
from servers.ports import free_port
from servers.s3_proxy import Fault, S3Proxy, proxied
from servers.s3_server import S3Server
from urllib3.util import Retry

from dapo_core.errors import StoreError
from dapo_core.objectstore import ObjectNotFoundError, StoreUnreachableError, measure
from dapo_core.objectstore.contract import PART_BYTES
from dapo_core.objectstore.s3 import RETRIES, S3Store, open_s3
from dapo_core.objectstore.s3_transfers import PARALLEL_PARTS

QUICK: Retry = RETRIES.new(total=3, backoff_factor=0.01, backoff_jitter=0.0)
MEGABYTE = 1024 * 1024


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with proxied(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def store(s3_server: S3Server, bucket: str, proxy: S3Proxy) -> S3Store:
    return open_s3(s3_server.url(bucket, endpoint=proxy.endpoint), s3_server.environment, QUICK)


def big_file(folder: Path, size: int) -> Path:
    path = folder / "big"
    block = random.Random(0).randbytes(MEGABYTE)
    with path.open("wb") as file:
        for _ in range(size // MEGABYTE):
            file.write(block)
        file.write(block[: size % MEGABYTE])
    return path


# Big files


def test_a_large_file_is_sent_in_parts_with_bounded_memory(store: S3Store, proxy: S3Proxy, tmp_path: Path) -> None:
    path = big_file(tmp_path, 7 * PART_BYTES + 5)
    with path.open("rb") as stream:
        expected = measure(stream, part_bytes=PART_BYTES)
    tracemalloc.start()
    try:
        assert store.put_file("big", path) == expected
        store.get_file("big", tmp_path / "back")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    with (tmp_path / "back").open("rb") as stream:
        assert measure(stream, part_bytes=PART_BYTES) == expected
    parts = [path for method, path in proxy.requests if method == "PUT" and "partNumber" in path]
    assert len(parts) == 8
    # The proxy of the test holds every part of its own once more.
    assert peak < 2 * (PARALLEL_PARTS + 2) * PART_BYTES


def test_a_part_with_another_hash_is_rejected(s3_server: S3Server, bucket: str) -> None:
    """The server sums each part and compares: what the upload says of a part is what lies there."""
    requests = open_s3(s3_server.url(bucket), s3_server.environment, QUICK)._requests
    started = requests.create_upload("big")
    with pytest.raises(S3Error, match="XAmzContentSHA256Mismatch"):
        requests.put_part("big", started, 1, b"two", hashlib.sha256(b"one").hexdigest())


def test_only_a_failed_part_is_sent_again(store: S3Store, proxy: S3Proxy, tmp_path: Path) -> None:
    faults = iter([Fault(503), Fault(500)])
    proxy.faults = lambda method, path: next(faults, None) if "partNumber=2" in path else None
    store.put_file("big", big_file(tmp_path, 3 * PART_BYTES))
    sent = [path.partition("partNumber=")[2][:1] for method, path in proxy.requests if "partNumber" in path]
    assert sorted(sent) == ["1", "2", "2", "2", "3"]


def test_an_upload_that_fails_leaves_nothing(
    store: S3Store, proxy: S3Proxy, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    proxy.faults = lambda method, path: Fault(503) if "partNumber=2" in path else None
    with pytest.raises(StoreError, match=r"big cannot be written to s3://.*: the server is overloaded"):
        store.put_file("big", big_file(tmp_path, 3 * PART_BYTES))
    assert list(store.list("")) == [] and store.sweep_incomplete("big", 0) == 0


def test_a_file_truncated_during_an_upload_is_an_error(store: S3Store, proxy: S3Proxy, tmp_path: Path) -> None:
    path = big_file(tmp_path, 2 * PARALLEL_PARTS * PART_BYTES)

    def shrink(_method: str, of: str) -> Fault | None:
        if "partNumber=" in of:  # whichever comes first: parts are sent side by side
            os.truncate(path, PART_BYTES)
        return None

    proxy.faults = shrink
    with pytest.raises(StoreError, match="big was truncated while it was being stored"):
        store.put_file("big", path)
    assert list(store.list("")) == []


def test_a_killed_upload_is_cleaned_up(store: S3Store, s3_server: S3Server, bucket: str) -> None:
    store._requests.create_upload("runs/r/big")
    assert list(store.list("")) == []
    assert store.sweep_incomplete("r/big", older_than_seconds=60) == 0
    assert store.sweep_incomplete("r/big", older_than_seconds=0) == 1
    assert store.sweep_incomplete("r/big", older_than_seconds=0) == 0


def test_cleanup_works_without_permission_to_list_uploads(store: S3Store, proxy: S3Proxy) -> None:
    proxy.faults = lambda _method, path: Fault(403, "AccessDenied") if "uploads=" in path else None
    assert store.sweep_incomplete("r/", older_than_seconds=0) == 0


def test_a_read_resumes_after_a_broken_connection(store: S3Store, proxy: S3Proxy, tmp_path: Path) -> None:
    path = big_file(tmp_path, 3 * MEGABYTE)
    store.put_file("big", path)
    cuts = iter([Fault(cut_after=MEGABYTE), Fault(cut_after=MEGABYTE)])
    proxy.faults = lambda method, path: next(cuts, None) if method == "GET" else None
    store.get_file("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert [method for method, _ in proxy.requests].count("GET") == 3


def test_an_object_replaced_during_a_read_is_an_error(store: S3Store, proxy: S3Proxy, tmp_path: Path) -> None:
    store.put_file("big", big_file(tmp_path, 3 * MEGABYTE))

    def replace(method: str, _path: str) -> Fault | None:
        proxy.faults = lambda method, path: None
        store.put_bytes("big", os.urandom(3 * MEGABYTE))
        return None

    with store.open("big") as stream:
        assert stream.read(10)
        # The rest is in no buffer: the connection is broken under the reader, and the object is another.
        stream.raw._disconnect()  # type: ignore[attr-defined]
        proxy.faults = replace
        replace("", "")
        with pytest.raises(StoreError, match="was replaced while it was read; try again"):
            stream.read()


# Bad servers


def test_occasional_errors_are_retried(store: S3Store, proxy: S3Proxy) -> None:
    dice = random.Random(1)
    proxy.faults = lambda method, path: Fault(503) if dice.random() < 0.2 else None
    for number in range(30):
        store.put_bytes(f"k/{number:02}", b"x" * number)
    assert [info.size for info in store.list("k/")] == list(range(30))
    assert store.get_bytes("k/07") == b"x" * 7


FAULTS: dict[str, tuple[Fault, str]] = {
    "expired": (Fault(400, "ExpiredToken"), "credentials have expired; put new ones into DAPO_S3_ACCESS_KEY and"),
    "no such bucket": (Fault(404, "NoSuchBucket"), r"the bucket bucket-\w+ does not exist at http://.*; create it, or"),
    "not allowed": (Fault(403, "AccessDenied"), r"do not permit this; grant them s3:ListBucket on bucket-\w+, and"),
    "unknown key": (Fault(403, "InvalidAccessKeyId"), "does not know these credentials; correct DAPO_S3_ACCESS_KEY"),
    "wrong secret": (Fault(403, "SignatureDoesNotMatch"), "the secret key does not match the access key; correct"),
    "a wrong clock": (Fault(403, "RequestTimeTooSkewed"), "this machine's clock is wrong; set it"),
    "another region": (Fault(400, "AuthorizationHeaderMalformed"), r"in another region; add \?region=... to the URL"),
    "full disks": (Fault(507, "XMinioStorageFull"), "the server's disks are full; free space, or keep fewer"),
    "a quota": (Fault(400, "XMinioAdminBucketQuotaExceeded"), "the bucket's quota is reached; raise it, or keep fewer"),
    "overload": (Fault(503, "SlowDown"), "the server is overloaded; try again later"),
    "a code that is not known": (Fault(409, "Confused"), "Confused, no; see the server's log"),
    "a proxy's error": (
        Fault(502, ""),
        "http://127.0.0.1:[0-9]+ answers 502; check that this is the endpoint of an S3",
    ),
}


@pytest.mark.parametrize(("fault", "sentence"), FAULTS.values(), ids=FAULTS.keys())
def test_errors_name_cause_and_remedy(fault: Fault, sentence: str, store: S3Store, proxy: S3Proxy) -> None:
    proxy.faults = lambda _method, _path: fault
    with pytest.raises(StoreError, match=sentence) as caught:
        store.put_bytes("key", b"x")
    assert str(caught.value).startswith("key cannot be written to s3://") and str(caught.value).endswith(".")
    with pytest.raises(StoreError):
        list(store.list(""))


@pytest.mark.parametrize("operation", ["list", "exists", "get", "put", "delete"])
def test_a_missing_bucket_is_not_a_missing_object(operation: str, s3_server: S3Server) -> None:
    store = open_s3(s3_server.url("no-such-bucket"), s3_server.environment, QUICK)
    calls: dict[str, Callable[[], object]] = {
        "list": lambda: list(store.list("")),
        "exists": lambda: store.exists("key"),
        "get": lambda: store.get_bytes("key"),
        "put": lambda: store.put_bytes("key", b""),
        "delete": lambda: store.delete("key"),
    }
    with pytest.raises(StoreError, match="the bucket no-such-bucket does not exist") as caught:
        calls[operation]()
    assert not isinstance(caught.value, ObjectNotFoundError)


def test_no_server_at_the_endpoint(s3_server: S3Server) -> None:
    url = s3_server.url("bucket", endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match="cannot be reached; correct the endpoint, or start the server"):
        open_s3(url, s3_server.environment, QUICK).get_bytes("key")


def test_http_to_an_https_server(tls_minio: MinioServer) -> None:
    url = tls_minio.url("bucket", endpoint=tls_minio.endpoint.replace("https", "http"))
    with pytest.raises(StoreError, match="check that this is the endpoint of an S3 server, and whether http or https"):
        open_s3(url, tls_minio.environment, QUICK).get_bytes("key")


def test_a_certificate_of_an_untrusted_authority(tls_minio: MinioServer) -> None:
    keys = {name: value for name, value in tls_minio.environment.items() if name != "DAPO_S3_CA_FILE"}
    with pytest.raises(StoreError, match=r"is not trusted \(.*\); set DAPO_S3_CA_FILE to the file of its certificate"):
        open_s3(tls_minio.url("bucket"), keys, QUICK).get_bytes("key")


def test_an_upload_that_is_answered_200_with_an_error_is_not_stored(
    store: S3Store, proxy: S3Proxy, tmp_path: Path
) -> None:
    """As Amazon answers a completion that fails after its status was sent."""
    proxy.faults = lambda method, path: Fault(200, "InternalError") if method == "POST" and "uploadId" in path else None
    with pytest.raises(StoreUnreachableError, match="the server did not complete the upload of its parts; try again"):
        store.put_file("big", big_file(tmp_path, 2 * PART_BYTES))
    assert list(store.list("")) == []


def test_a_server_that_answers_404_to_the_deletion_of_nothing(store: S3Store, proxy: S3Proxy) -> None:
    """As Google's does; the contract says that it is no error."""
    proxy.faults = lambda method, path: Fault(404, "NoSuchKey") if method == "DELETE" else None
    store.delete("nothing")
    proxy.faults = lambda method, path: Fault(404, "NoSuchBucket") if method == "DELETE" else None
    with pytest.raises(StoreError, match="does not exist"):
        store.delete("nothing")


# Credentials


def test_least_privilege_is_enough(minio: MinioServer, bucket: str) -> None:
    store = open_s3(minio.url(bucket), minio.new_user(bucket), QUICK)
    store.put_bytes("r/key", b"x")
    assert store.get_bytes("r/key") == b"x" and store.exists("r/key") and len(list(store.list("r/"))) == 1
    assert store.sweep_incomplete("r/", 0) == 0
    store.delete("r/key")
    with pytest.raises(StoreError, match="the credentials do not permit this"):
        list(open_s3(minio.url(minio.new_bucket()), minio.new_user(bucket), QUICK).list(""))


def test_a_session_token(minio: MinioServer, bucket: str) -> None:
    session = minio.session(minio.new_user())
    store = open_s3(minio.url(bucket), session, QUICK)
    store.put_bytes("key", b"x")
    assert store.get_bytes("key") == b"x"
    torn = session | {"DAPO_S3_SESSION_TOKEN": session["DAPO_S3_SESSION_TOKEN"][:-9]}
    with pytest.raises(StoreError, match="the session token is not valid; correct DAPO_S3_SESSION_TOKEN"):
        open_s3(minio.url(bucket), torn, QUICK).put_bytes("key", b"x")


def write_keys(path: Path, keys: Mapping[str, str]) -> None:
    path.write_text(
        f"[default]\naws_access_key_id = {keys['DAPO_S3_ACCESS_KEY']}\n"
        f"aws_secret_access_key = {keys['DAPO_S3_SECRET_KEY']}\n"
    )


def test_keys_in_a_file_may_rotate_while_the_store_is_open(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    old, new, path = minio.new_user(bucket), minio.new_user(bucket), tmp_path / "credentials"
    write_keys(path, old)
    store = open_s3(minio.url(bucket), {"AWS_SHARED_CREDENTIALS_FILE": str(path)}, QUICK)
    store.put_bytes("key", b"x")
    minio.admin.user_disable(old["DAPO_S3_ACCESS_KEY"])
    with pytest.raises(StoreError):
        store.get_bytes("key")
    write_keys(path, new)
    assert store.get_bytes("key") == b"x"
    path.unlink()
    with pytest.raises(StoreError, match=r"AWS_SHARED_CREDENTIALS_FILE .*, profile default has no keys for the store"):
        store.get_bytes("key")


@pytest.fixture
def agent(minio: MinioServer) -> Iterator[tuple[str, list[str | None]]]:
    """What EKS Pod Identity serves: keys of a session that are about to expire, each time others. Its URL, and the
    tokens that it was shown."""
    user, tokens = minio.new_user(), list[str | None]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["Authorization"])
            keys, until = minio.session(user), datetime.now(UTC) + timedelta(seconds=5)  # expired: less than 10 s
            body = {
                "AccessKeyId": keys["DAPO_S3_ACCESS_KEY"],
                "SecretAccessKey": keys["DAPO_S3_SECRET_KEY"],
                "Token": keys["DAPO_S3_SESSION_TOKEN"],
                "Expiration": f"{until:%Y-%m-%dT%H:%M:%SZ}",
            }
            self.send_response(200 if tokens[-1] else 403)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/credentials", tokens
    server.shutdown()
    server.server_close()


def test_keys_of_a_pods_role_are_renewed(
    agent: tuple[str, list[str | None]],
    minio: MinioServer,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, tokens = agent
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    store = open_s3(minio.url(bucket), os.environ, QUICK)
    store.put_bytes("key", b"x")
    token.write_text("second")  # as a kubelet replaces it
    assert store.get_bytes("key") == b"x" and tokens[0] == "first" and tokens[-1] == "second"
    token.write_text("")
    with pytest.raises(StoreError, match="the role of AWS_CONTAINER_CREDENTIALS_FULL_URI has no keys for the store"):
        store.get_bytes("key")


def test_the_systems_certificates_are_trusted(tls_minio: MinioServer, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = dict(tls_minio.environment)
    monkeypatch.setenv("SSL_CERT_FILE", environment.pop("DAPO_S3_CA_FILE"))  # where OpenSSL looks for the system's
    bucket = tls_minio.new_bucket()
    assert list(open_s3(tls_minio.url(bucket), environment, QUICK).list("")) == []
