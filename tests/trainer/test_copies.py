"""Model and data from a store: copied once, and there only when whole. A folder stands for the bucket."""

from pathlib import Path

import pytest
from servers.minio import MinioServer

from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_trainer.data.sources import copied_file, copied_folder
from dapo_trainer.demo.prepare import DONE, copy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    (folder / "model" / "parts").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "parts" / "1").write_text("weights")
    (folder / "train.parquet").write_text("rows")
    return folder


def test_a_folder_comes_whole_and_once(bucket: Path) -> None:
    folder = copied_folder((bucket / "model").as_uri())
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "config.json",
        "parts/1",
    }
    (folder / "mark").touch()
    assert copied_folder((bucket / "model").as_uri()) == folder and (folder / "mark").exists()


def test_what_has_changed_is_copied_again(bucket: Path) -> None:
    before = copied_file((bucket / "train.parquet").as_uri())
    (bucket / "train.parquet").write_text("other rows")
    after = copied_file((bucket / "train.parquet").as_uri())
    assert (before.read_text(), after.read_text()) == ("rows", "other rows")


def test_from_a_bucket(minio: MinioServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in minio.environment.items():
        monkeypatch.setenv(name, value)
    url = minio.url(minio.new_bucket())
    store = open_store(url)
    store.put_bytes("model/config.json", b"{}")
    store.put_bytes("model/parts/1", b"weights")
    place, _, query = url.partition("?")
    assert (copied_folder(f"{place}/model?{query}") / "parts" / "1").read_bytes() == b"weights"
    assert copied_file(f"{place}/model/config.json?{query}").read_bytes() == b"{}"
    with pytest.raises(StoreError, match=r"s3://.*/model/conf\?.* was not found"):
        copied_file(f"{place}/model/conf?{query}")


def test_a_file_keeps_its_name(bucket: Path) -> None:
    path = copied_file((bucket / "train.parquet").as_uri())
    assert (path.name, path.read_text()) == ("train.parquet", "rows")


def test_nothing_half_copied_stays(bucket: Path, cache: Path) -> None:
    with pytest.raises(StoreError, match=r"No objects found under file:///.*/nothing\."):
        copied_folder((bucket / "nothing").as_uri())
    with pytest.raises(StoreError):
        copied_file((bucket / "absent.parquet").as_uri())
    assert not (cache / "dapo").exists() or list((cache / "dapo" / "sources").iterdir()) == []


def test_the_demo_is_copied_with_its_mark_last(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bucket / DONE).write_text("{}")
    store = open_store((tmp_path / "store").as_uri())
    put: list[str] = []
    monkeypatch.setattr(store, "put_file", lambda key, path, give=False: put.append(key))
    copy(bucket, store)
    assert put[-1] == DONE
    assert sorted(put) == sorted([DONE, "model/config.json", "model/parts/1", "train.parquet"])
