"""URLs and the environment of S3: what they mean, and how mistakes in them are reported."""

import pytest

from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.objectstore.s3 import open_s3
from dapo_core.objectstore.s3_address import AMAZON, Address, credentials, parse

KEYS = {"DAPO_S3_ACCESS_KEY": "a", "DAPO_S3_SECRET_KEY": "s"}
ENDPOINT = {"DAPO_S3_ENDPOINT": "http://minio:9000"}


@pytest.mark.parametrize(
    ("url", "environment", "address"),
    [
        pytest.param("s3://b", {}, Address("b", "", AMAZON), id="a bucket at Amazon"),
        pytest.param("s3://b/a/b/", {}, Address("b", "a/b", AMAZON), id="a prefix of two"),
        pytest.param("s3://b/p", ENDPOINT, Address("b", "p", "http://minio:9000", "us-east-1"), id="the environment's"),
        pytest.param(
            "s3://b/p?endpoint=https://other/&region=eu-1&pathStyle=true",
            ENDPOINT,
            Address("b", "p", "https://other", "eu-1", True, "endpoint=https://other/&region=eu-1&pathStyle=true"),
            id="the URL's own comes first",
        ),
        pytest.param(
            "s3://b?pathStyle=false", {}, Address("b", "", AMAZON, None, False, "pathStyle=false"), id="host style"
        ),
    ],
)
def test_what_a_url_means(url: str, environment: dict[str, str], address: Address) -> None:
    assert parse(url, environment) == address
    assert parse(address.url(), environment) == address


def test_addresses_of_objects() -> None:
    address = parse("s3://b/p?endpoint=http://m:9", {})
    assert address.key("r/x") == "p/r/x"
    assert address.url("r/x") == "s3://b/p/r/x?endpoint=http://m:9"
    assert (address.host, address.secure, address.where) == ("m:9", False, "s3://b/p")


@pytest.mark.parametrize(
    ("url", "environment", "sentence"),
    [
        pytest.param("s3:///p", KEYS, "has no bucket; use s3://bucket/prefix", id="no bucket"),
        pytest.param("s3://key:secret@b/p", KEYS, "and DAPO_S3_ACCESS_KEY for keys", id="keys in the URL"),
        pytest.param("s3://b?regoin=x", KEYS, "has regoin, but knows only endpoint, region and pathStyle", id="a slip"),
        pytest.param("s3://b?pathStyle=yes", KEYS, "has pathStyle=yes; use true or false", id="no boolean"),
        pytest.param("s3://b?endpoint=minio:9000", KEYS, "use http://host:port or https://host", id="no scheme"),
        pytest.param("s3://b", {}, "DAPO_S3_ACCESS_KEY and DAPO_S3_SECRET_KEY are not set: set them", id="no keys"),
        pytest.param(
            "s3://b", {"DAPO_S3_ACCESS_KEY": "a"}, "DAPO_S3_SECRET_KEY is not set: set them", id="half a pair"
        ),
        pytest.param(
            "s3://b",
            KEYS | {"DAPO_S3_CA_FILE": "/none.pem"},
            "DAPO_S3_CA_FILE is /none.pem, which cannot be read (No such file or directory)",
            id="no CA file",
        ),
    ],
)
def test_mistakes_are_reported(url: str, environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_s3(url, environment)
    assert sentence in str(refused.value)


def test_secrets_are_not_shown() -> None:
    assert "geheim" not in repr(credentials({"DAPO_S3_ACCESS_KEY": "a", "DAPO_S3_SECRET_KEY": "geheim"}))


def test_a_store_knows_how_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    url = "s3://b/p?endpoint=http://m:9&region=r"
    assert open_store(url).url == url


@pytest.mark.parametrize(
    ("path_style", "host"), [("true", "s3.example.com"), ("false", "bucket.s3.example.com")], ids=["path", "host"]
)
def test_where_the_bucket_goes(path_style: str, host: str) -> None:
    store = open_s3(f"s3://bucket?endpoint=http://s3.example.com&pathStyle={path_style}", KEYS)
    built = store._client._base_url.build(method="GET", region="r", bucket_name="bucket", object_name="key")
    assert built.netloc == host
