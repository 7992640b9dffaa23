"""Where Amazon, Google, Cloudflare and others answer differently, against models of them (`servers.s3_model`).

The contract itself runs on the same models in test_objectstore.py.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from minio.error import S3Error
from servers.s3_model import AMAZON, CLOUDFLARE, GOOGLE, MEGABYTE, Manners, S3Model, s3_model
from urllib3.util import Retry

from dapo_core.errors import StoreError
from dapo_core.objectstore import StoreUnreachableError
from dapo_core.objectstore.contract import PART_BYTES, part_bytes_of
from dapo_core.objectstore.s3 import RETRIES, S3Store, open_s3

QUICK: Retry = RETRIES.new(total=3, backoff_factor=0.01, backoff_jitter=0.0)

Stage = Callable[[Manners], tuple[S3Store, S3Model]]


@pytest.fixture
def stage() -> Iterator[Stage]:
    models = []

    def made(manners: Manners) -> tuple[S3Store, S3Model]:
        models.append(model := S3Model(manners))
        return open_s3(model.url(model.new_bucket()), model.environment, QUICK), model

    yield made
    for model in models:
        model.close()


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(MEGABYTE) * 17)
    return path


def same(store: S3Store, path: Path, folder: Path) -> bool:
    store.get_file("r/big", folder / "back")
    return (folder / "back").read_bytes() == path.read_bytes()


LOST = [
    pytest.param(Manners(lost_completions=1), id="NoSuchUpload, as most servers"),
    pytest.param(Manners(lost_completions=1, completed_again=True), id="once more, as Amazon"),
    pytest.param(Manners(lost_completions=3, completed_again=True), id="once more, three times"),
]


@pytest.mark.parametrize("manners", LOST)
def test_a_completion_whose_answer_is_lost_counts(manners: Manners, stage: Stage, big: Path, tmp_path: Path) -> None:
    """As of a server that assembles for longer than the client or a proxy waits: it would be sent again for ever."""
    store, model = stage(manners)
    store.put_file("r/big", big)
    assert same(store, big, tmp_path) and store.sweep_incomplete("r/", 0) == 0
    assert len(model.objects) == 1


def test_an_object_of_that_name_is_not_taken_for_the_upload_that_is_unknown(stage: Stage, big: Path) -> None:
    """Where tags are no sums, or the object is an older one, the upload is repeated."""
    store, _ = stage(Manners(lost_completions=1, tags_are_sums=False))
    with pytest.raises(StoreError, match="NoSuchUpload"):
        store.put_file("r/big", big)
    store.put_file("r/big", big)
    store, model = stage(GOOGLE)
    store.put_bytes("r/big", b"older")
    uploads = store._requests
    tag = uploads.put_part("runs/r/big", uploads.create_upload("runs/r/big"), 1, b"x", _sum(b"x"))
    with pytest.raises(S3Error, match="NoSuchUpload"):
        uploads.complete_upload("runs/r/big", "another", [tag])
    assert len(model.objects) == 1


def test_200_with_an_error_stores_nothing_and_the_next_try_does(stage: Stage, big: Path, tmp_path: Path) -> None:
    store, _ = stage(Manners(spaces=3, failed_completions=1))
    with pytest.raises(StoreUnreachableError, match="the server did not complete the upload of its parts; try again"):
        store.put_file("r/big", big)
    assert list(store.list("")) == [] and store.sweep_incomplete("r/", 0) == 0, "its parts are gone, too"
    store.put_file("r/big", big)
    assert same(store, big, tmp_path)


def test_slow_down_is_waited_for(stage: Stage, big: Path, tmp_path: Path) -> None:
    store, _ = stage(Manners(slow_down_every=3))
    for number in range(10):
        store.put_bytes(f"r/{number}", b"x")
    store.put_file("r/big", big)
    assert same(store, big, tmp_path) and len(list(store.list("r/"))) == 11
    for number in range(10):
        store.delete(f"r/{number}")
    assert [info.key for info in store.list("r/")] == ["r/big"]


def test_a_server_that_only_says_slow_down_is_named_overloaded(stage: Stage) -> None:
    store, _ = stage(Manners(slow_down_every=1))
    with pytest.raises(StoreUnreachableError, match="the server is overloaded; try again later"):
        store.put_bytes("key", b"x")


SERVERS = [pytest.param(AMAZON, id="Amazon"), pytest.param(GOOGLE, id="Google"), pytest.param(CLOUDFLARE, id="R2")]


@pytest.mark.parametrize("manners", SERVERS)
def test_a_name_with_any_character_is_kept(manners: Manners, stage: Stage) -> None:
    store, _ = stage(manners)
    names = ["r/a b", "r/a%20b", "r/c+d", "r/ä&<x>", "r/e=f;g"]
    for name in names:
        store.put_bytes(name, name.encode())
    assert {info.key for info in store.list("r/")} == set(names)
    assert all(store.get_bytes(name) == name.encode() for name in names)


SIZES = [PART_BYTES + 1, 3 * PART_BYTES, 10**9, 160 * 10**9, 10_000 * PART_BYTES, 10_000 * PART_BYTES + 1, 5 * 10**12]


@pytest.mark.parametrize("size", SIZES)
def test_parts_are_as_amazon_and_cloudflare_want_them(size: int) -> None:
    """Of 5 MiB to 5 GiB each but the last, all of the same size, at most ten thousand."""
    part = part_bytes_of(size)
    assert part is not None and 5 * MEGABYTE <= part <= 5 * 1024 * MEGABYTE and -(-size // part) <= 10_000


RULES = [
    pytest.param(AMAZON, [MEGABYTE, MEGABYTE], "EntityTooSmall", id="too small"),
    pytest.param(CLOUDFLARE, [6 * MEGABYTE, 5 * MEGABYTE, 1], "InvalidPart", id="not equal"),
]


@pytest.mark.parametrize(("manners", "sizes", "code"), RULES)
def test_the_model_has_the_rules_of_parts(manners: Manners, sizes: list[int], code: str) -> None:
    with s3_model(manners) as model:
        requests = open_s3(model.url(model.new_bucket()), model.environment, QUICK)._requests
        started = requests.create_upload("big")
        tags = [
            requests.put_part("big", started, number, bytes(size), _sum(bytes(size)))
            for number, size in enumerate(sizes, 1)
        ]
        with pytest.raises(S3Error, match=code):
            requests.complete_upload("big", started, tags)


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
