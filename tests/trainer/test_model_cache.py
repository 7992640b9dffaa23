"""The models of a node: fetched once, verified, shared and bounded; and what a head fetches of one."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dapo_core.errors import ModelError
from dapo_trainer.data import model_cache, sources
from dapo_trainer.data.model_cache import CachedModels
from dapo_trainer.data.sources import model_folder

WEIGHTS = b"weights" * 100


@pytest.fixture
def cache(tmp_path: Path) -> CachedModels:
    return CachedModels(tmp_path / "cache", 3000)


class Source:
    """Writes a model, and counts how often."""

    def __init__(self, content: bytes = WEIGHTS) -> None:
        self.content, self.times = content, 0

    def __call__(self, folder: Path) -> None:
        self.times += 1
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(self.content)


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time in which a model counts as verified."""
    now = time.time
    monkeypatch.setattr(model_cache.time, "time", lambda: now() + 2 * model_cache.VERIFIED_SECONDS)


def test_a_model_is_fetched_once_for_all_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    folders = {CachedModels(tmp_path, 3000).folder("qwen", 700, source) for _ in range(3)}
    later(monkeypatch)
    folders.add(CachedModels(tmp_path, 3000).folder("qwen", 700, source))
    assert folders == {tmp_path / "qwen"} and source.times == 1
    assert (tmp_path / "qwen" / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(
            lambda folder: (folder / "model.safetensors").write_bytes(b"x" + WEIGHTS[1:]), id="a changed byte"
        ),
        pytest.param(lambda folder: (folder / "config.json").unlink(), id="a missing file"),
        pytest.param(lambda folder: (folder.parent / "qwen.json").write_text("torn"), id="a torn record"),
    ],
)
def test_a_model_that_has_changed_is_fetched_again(
    harm: Callable[[Path], Any], cache: CachedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    folder = cache.folder("qwen", 700, source)
    harm(folder)
    later(monkeypatch)
    assert cache.folder("qwen", 700, source) == folder
    assert source.times == 2 and (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_what_the_source_says_of_its_files_is_checked(cache: CachedModels) -> None:
    sums = {"model.safetensors": sha256(WEIGHTS).hexdigest(), "README.md": "0" * 64}
    cache.folder("qwen", 700, Source(), sums)
    with pytest.raises(ModelError, match=r"model\.safetensors was not downloaded intact"):
        cache.folder("other", 700, Source(b"torn"), sums)
    assert not [path for path in cache.root.iterdir() if "other" in path.name and path.suffix not in (".lock", ".use")]


def test_room_is_made_by_removing_what_nobody_uses(tmp_path: Path) -> None:
    """Each process uses its models until it ends: here others have ended, the oldest first."""
    for name in ("old", "new"):
        user = CachedModels(tmp_path, 3000)
        user.folder(name, 1400, Source(WEIGHTS * 2))
        for lock in user._used:
            model_cache.os.close(lock)
        time.sleep(0.01)
    CachedModels(tmp_path, 3000).folder("third", 1400, Source(WEIGHTS * 2))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["new", "third"]


def test_a_model_in_use_is_not_removed(cache: CachedModels) -> None:
    cache.folder("used", 2800, Source(WEIGHTS * 4))
    with pytest.raises(ModelError, match=r"raise spec\.topology\.modelCache\.maxSize, which is 3"):
        CachedModels(cache.root, 3000).folder("another", 700, Source())
    assert (cache.root / "used").is_dir()


def test_pods_that_start_together_wait_for_the_first(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from dapo_trainer.data.model_cache import CachedModels\n"
        "def fetch(folder): (folder / 'config.json').write_text('{}'); print('fetched'); time.sleep(0.3)\n"
        f"CachedModels(Path({str(tmp_path)!r})).folder('qwen', 2, fetch)"
    )
    pods = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [pod.communicate()[0] for pod in pods]
    assert sorted(said) == ["", "", "fetched\n"] and not any(pod.returncode for pod in pods)


def test_a_network_fault_is_not_the_caches(cache: CachedModels) -> None:
    def fetch(_: Path) -> None:
        raise ConnectionError("no route to the hub")

    with pytest.raises(ModelError, match=r"could not be downloaded to .*: no route to the hub"):
        cache.folder("qwen", 700, fetch)
    assert cache.folder("qwen", 700, Source()).is_dir(), "the next attempt starts afresh"


def test_a_volume_that_cannot_be_written_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"writable for user \d+, or remove spec\.topology\.modelCache"):
        CachedModels(tmp_path / "file").folder("qwen", 700, Source())


# By URI


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that stands for a bucket."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    Source()(folder)
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(sources, "open_store", lambda uri, opened=sources.open_store: opened(folder.as_uri()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    return "s3://bucket/model"


@pytest.mark.parametrize("has_cache", [True, False], ids=["with a cache", "without"])
def test_a_head_fetches_tokenizer_and_configuration_to_the_same_path(
    has_cache: bool, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(pod: str) -> Path:
        """Each pod has a disk of its own at the same path."""
        if has_cache:
            monkeypatch.setenv("DAPO_MODEL_CACHE", str(tmp_path / "cache"))
        found = model_folder(bucket, weights=pod == "trainer")
        names = {path.name for path in found.iterdir()}
        assert ("model.safetensors" in names) == (pod == "trainer")
        assert {"config.json", "tokenizer.json"} <= names
        for root in (tmp_path / "cache", tmp_path / "own"):
            if root.exists():
                root.rename(tmp_path / f"{pod}-{root.name}")
        return found

    assert place("head") == place("trainer")


@pytest.mark.parametrize("uri", ["hf://Qwen/Qwen2.5-7B", "s3://bucket/model"])
@pytest.mark.parametrize("weights", [True, False], ids=["trainer", "head"])
def test_an_image_that_is_mounted_is_the_model(
    uri: str, weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAPO_MODEL_FOLDER", str(tmp_path))
    with pytest.raises(ModelError, match=r"modelCache\.image has no config\.json at its root"):
        model_folder(uri, weights=weights)
    Source()(tmp_path)
    assert model_folder(uri, weights=weights) == tmp_path


def test_a_hub_model_is_cached_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[Any] = []

    class Api:
        def model_info(self, repository: str, revision: str | None, files_metadata: bool) -> Any:
            lfs = type("Lfs", (), {"sha256": sha256(WEIGHTS).hexdigest()})
            files = [
                type("File", (), {"rfilename": "config.json", "size": 2, "lfs": None}),
                type("File", (), {"rfilename": "model.safetensors", "size": 700, "lfs": lfs}),
            ]
            return type("Info", (), {"sha": f"commit-of-{revision}", "siblings": files})

    def download(repository: str, revision: str, local_dir: Path, allow_patterns: Any) -> None:
        asked.append((repository, revision, allow_patterns))
        Source()(local_dir)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setenv("DAPO_MODEL_CACHE", str(tmp_path))
    folder = model_folder("hf://Qwen/Qwen2.5-7B", "main")
    assert model_folder("hf://Qwen/Qwen2.5-7B", "main") == folder
    assert asked == [("Qwen/Qwen2.5-7B", "commit-of-main", None)]
    assert model_folder("hf://Qwen/Qwen2.5-7B", "v2") != folder
    assert json.loads((tmp_path / f"{folder.name}.json").read_text())["size"] == len(WEIGHTS) + 2
