"""`dapo checkpoints` as typed: what it prints, what it refuses, and that it removes nothing unasked."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import dumped, job
from typer.testing import CliRunner, Result

from dapo_core.db import MetadataReader, RunRow, open_reader, open_writer, upgrade
from dapo_core.errors import CheckpointError, DapoError, SpecError
from dapo_core.naming import checkpoint_prefix, manifest_key, samples_key
from dapo_core.objectstore import FolderStore, ObjectInfo, open_store
from dapo_core.run.checkpoint import Retention
from dapo_core.run.home import Home as HomeFolder
from dapo_core.run.log_keys import PodLog
from dapo_trainer.checkpoint_tool import command
from dapo_trainer.checkpoint_tool.lookup import find_checkpoints
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint

RUN = "first-20261121-0412-x7k2"
OLD_RUN = "first-20250101-0000-abcd"
BEST = "val-core/aime/acc/mean@32"


class Home:
    """A folder of runs, one of them with four checkpoints, of which the second is the best."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path / 'dapo.db'}"
        upgrade(self.url)
        spec = dumped(job(checkpoints={"keepLast": 3}))
        open_writer(self.url).create_run(RunRow(RUN, name="first", namespace="default", spec=spec, created_at=1.0))
        self.store = FolderStore(path / "store")
        self.checkpoints = CheckpointStore(self.store, RUN)
        for step, value in ((5, 0.1), (10, 0.9), (15, 0.2), (20, 0.3)):
            self.commit(step, value)

    def commit(self, step: int, value: float) -> None:
        folder = self.path / f"local-{step}"
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"weights")
        (folder / "config.json").write_bytes(b"{}")
        self.checkpoints.commit(LocalCheckpoint(step, folder, 1, "d", metrics={BEST: value}))

    def dapo(self, *words: str, environment: dict[str, str] | None = None) -> Result:
        home = ["--home", str(self.path)] if environment is None else []
        return CliRunner(env={"COLUMNS": "160"} | (environment or {})).invoke(command.checkpoints, [*words, *home])

    def told(self, *words: str) -> str:
        result = self.dapo(*words)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    def refused(self, *words: str) -> DapoError:
        error = self.dapo(*words).exception
        assert isinstance(error, DapoError), error
        return error


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_listing(home: Home) -> None:
    lines = home.told("list", RUN).splitlines()
    assert [line.split()[0] for line in lines] == ["step", "20", "15", "10", "5"]
    assert "Kept as number 1 of the newest 3." in lines[1] and "Removed: not among the newest 3." in lines[4]
    rows = json.loads(home.told("list", "first", "--json"))
    assert [row["step"] for row in rows] == [20, 15, 10, 5]
    assert rows[0]["uri"] == home.checkpoints.uri(20, 1) and rows[0]["metrics"] == {BEST: 0.3}


def test_verifying_names_what_is_corrupt(home: Home) -> None:
    assert home.told("verify", RUN).count("intact, 2 files") == 4
    home.store.put_bytes(checkpoint_prefix(RUN, 10, 1) + "model.pt", b"torn")
    result = home.dapo("verify", RUN)
    assert result.exit_code == 31 and result.output.count("intact, 2 files") == 3
    assert "Step 10: The checkpoint at step 10 is corrupt: model.pt has 4 bytes instead of 7." in result.output
    assert home.told("verify", f"{RUN}@20").count("Step") == 1


def test_pruning_is_a_dry_run_by_default(home: Home) -> None:
    told = home.told("prune", RUN, "--keep-last", "1", "--keep-best", "1", "--metric", BEST)
    assert told.count("Removed: not among the newest 1 or best 1") == 2
    assert told.splitlines()[-1] == "Dry run: nothing was removed. Add --remove to delete."
    assert home.checkpoints.steps() == [20, 15, 10, 5]


def test_pruning_is_on_record(home: Home) -> None:
    told = home.told("prune", RUN, "--keep-last", "1", "--keep-best", "1", "--metric", BEST, "--remove")
    assert told.splitlines()[-1] == "Removed: 2."
    assert home.checkpoints.steps() == [20, 10]
    rows = {row.step: row for row in open_reader(home.url).checkpoints(RUN)}
    assert {step: row.state for step, row in rows.items()} == {
        5: "deleted",
        10: "committed",
        15: "deleted",
        20: "committed",
    }
    assert (rows[10].decision or "").startswith("Kept as number 1 of the best 1")


def test_pruning_keeps_the_newest_whatever_is_asked(home: Home) -> None:
    home.told("prune", RUN, "--keep-last", "1", "--remove")
    assert home.checkpoints.steps() == [20]


def age(home: Home) -> None:
    for path in home.store.root.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 48 * 3600,) * 2)


def test_sweeping_is_a_dry_run_by_default(home: Home) -> None:
    torn = checkpoint_prefix(RUN, 25, 1) + "model.pt"
    home.store.put_bytes(torn, b"half")
    home.store.put_bytes(f"{RUN}/checkpoints/shared/{'0' * 64}", b"nobody's")
    assert home.told("sweep").strip() == "Nothing to sweep.", "all of it is young"
    age(home)
    told = home.told("sweep")
    assert "incomplete upload of step 25" in told and "shared files that no checkpoint uses" in told
    assert "Add --remove" in told and home.store.exists(torn)
    assert "Removed: 2 objects." in home.told("sweep", RUN, "--remove")
    assert not home.store.exists(torn)
    home.checkpoints.verify(home.checkpoints.manifest(20))


def test_b17_samples_are_kept_for_so_many_days(home: Home) -> None:
    keys = [samples_key(RUN, step, attempt) for step, attempt in ((5, 1), (5, 2), (10, 2), (20, 2))]
    for key in (*keys, f"{RUN}/samples/notes.txt"):
        home.store.put_bytes(key, b"rows")
    assert home.told("sweep", "--samples-after", "1").strip() == "Nothing to sweep.", "all of it is young"
    age(home)
    assert home.told("sweep").strip() == "Nothing to sweep.", "samples are removed only when asked"
    assert home.told("sweep", "--samples-after", "3").strip() == "Nothing to sweep."
    home.store.put_bytes(keys[2], b"rows")
    assert "Add --remove" in home.told("sweep", "--samples-after", "1")
    assert "Removed: 2 objects." in home.told("sweep", "--samples-after", "1", "--remove")
    left = {info.key for info in home.store.list(f"{RUN}/samples/")}
    assert left == {keys[2], keys[3], f"{RUN}/samples/notes.txt"}, "what is young, the last step's, and other files"
    assert home.checkpoints.steps() == [20, 15, 10, 5]


def test_runs_that_nobody_knows_are_swept_when_asked(home: Home) -> None:
    home.store.put_bytes("old-run/checkpoints/step-000005/manifest.json", b"{}")
    home.store.put_bytes("old-run/samples/a.parquet", b"")
    age(home)
    assert home.told("sweep").strip() == "Nothing to sweep."
    assert home.told("sweep", "--unknown-runs").strip() == "Nothing to sweep.", "old-run is no run's ID"
    home.store.put_bytes(PodLog(1, "head", 0).key(OLD_RUN, 1), b"of a run that failed before its first step")
    home.store.put_bytes(f"{OLD_RUN}/notes.txt", b"")
    age(home)
    shown = home.told("sweep", "--unknown-runs")
    assert "all checkpoints, samples and logs of a run that is not on record" in shown and "old-run" not in shown
    home.told("sweep", OLD_RUN, "--unknown-runs", "--remove")
    left = {info.key for info in home.store.list("") if not info.key.startswith(RUN)}
    assert left == {
        "old-run/checkpoints/step-000005/manifest.json",
        "old-run/samples/a.parquet",
        f"{OLD_RUN}/notes.txt",
    }


@pytest.mark.parametrize("options", [(), ("--unknown-runs",)], ids=["known runs", "unknown runs"])
def test_b20_sweeping_lists_no_run_to_find_runs(
    options: tuple[str, ...], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing a bucket takes a request for each thousand of its objects; its folders are one answer."""
    listed = []

    def spied(self: FolderStore, prefix: str) -> Iterator[ObjectInfo]:
        listed.append(prefix)
        return of_folder(self, prefix)

    of_folder = FolderStore.list
    monkeypatch.setattr(FolderStore, "list", spied)
    home.told("sweep", *options)
    assert {prefix.partition("/")[2] for prefix in listed} <= {"checkpoints/", "checkpoints/pins/"}


def test_a_checkpoint_that_is_kept_survives_retention_until_it_is_released(home: Home) -> None:
    assert f"{RUN}@5 is kept" in home.told("keep", f"{RUN}@5")
    assert "Kept as pinned by `dapo checkpoints keep`." in home.told("list", RUN)
    home.told("prune", RUN, "--keep-last", "1", "--remove")
    assert home.checkpoints.steps() == [20, 5]
    assert home.checkpoints.retain(Retention(keep_last=1)) == [], "by a trainer as well"
    home.told("keep", f"{RUN}@5", "--release")
    home.told("prune", RUN, "--keep-last", "1", "--remove")
    assert home.checkpoints.steps() == [20]
    assert isinstance(home.refused("keep", f"{RUN}@5"), CheckpointError) and home.checkpoints.pinned() == set()
    assert "names no step: add one" in str(home.refused("keep", RUN))


def test_only_an_unknown_run_that_is_named_is_removed(home: Home) -> None:
    for key in (f"{OLD_RUN}/checkpoints/step-000001/model.pt", "datasets/train.parquet", "models/model.safetensors"):
        home.store.put_bytes(key, b"x")
    age(home)
    before = [info.key for info in home.store.list("")]
    assert "name one, `dapo checkpoints sweep RUN" in str(home.refused("sweep", "--unknown-runs", "--remove"))
    assert "not the folder of a run" in str(home.refused("sweep", "datasets", "--unknown-runs", "--remove"))
    assert "it is on record" in str(home.refused("sweep", RUN, "--unknown-runs", "--remove"))
    assert [info.key for info in home.store.list("")] == before


def test_a_login_of_one_namespace_knows_no_unknown_runs(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataReader, "only_namespace", lambda _self: "team-a")
    refused = home.refused("sweep", "--unknown-runs")
    assert isinstance(refused, SpecError) and "sees only runs of the namespace team-a" in str(refused)


@pytest.mark.parametrize("manifest", [b'{"size": 1e999}', b"[" * 5000, b"\xff", b"", b'{"version": 4, "files": 7}'])
def test_doubt_4_a_runs_manifests_stop_no_sweep_of_others(home: Home, manifest: bytes) -> None:
    hostile = RUN.replace("first", "evil")
    spec = dumped(job())
    open_writer(home.url).create_run(RunRow(hostile, name="evil", namespace="b", spec=spec, created_at=1.0))
    home.store.put_bytes(manifest_key(hostile, 5, 1), manifest)
    for run in (hostile, RUN):
        home.store.put_bytes(f"{run}/checkpoints/shared/{'0' * 64}", b"nobody's")
        home.store.put_bytes(checkpoint_prefix(run, 25, 1) + "model.pt", b"half")
    age(home)
    told = home.told("sweep")
    rows = [line for line in told.splitlines() if RUN in line]
    assert [any(what in row for row in rows) for what in ("incomplete upload of step 25", "shared files")] == [True] * 2


def test_the_record_of_another_place_sweeps_nothing(home: Home, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    upgrade(f"sqlite:///{tmp_path / 'other' / 'dapo.db'}")
    other = f"sqlite:///{tmp_path / 'other' / 'dapo.db'}"
    refused = home.refused("sweep", "--unknown-runs", "--metadata", other)
    assert isinstance(refused, SpecError) and "this is not their metadata store" in str(refused)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["list", "frist"], "There is no run 'frist'; did you mean first?", id="a slip"),
        pytest.param(["verify", f"{RUN}@7"], f"{RUN} has no committed checkpoint at step 7", id="no such step"),
        pytest.param(["list", "file:///a/b"], "is not a checkpoint's URI: use .../RUN/checkpoints/step-N", id="a URI"),
        pytest.param(["prune", RUN, "--keep-best", "1"], "--keep-best needs a metric to compare by", id="no metric"),
        pytest.param(["export", RUN, "/"], "/ already exists: name another folder, or add --replace", id="the root"),
        pytest.param(["list", RUN, "--store", "gs://b"], "is not supported; use s3://", id="a store of no kind"),
    ],
)
def test_mistakes(words: list[str], sentence: str, home: Home) -> None:
    result = home.dapo(*words)
    assert result.exit_code != 0 and sentence in f"{result.exception}{result.output}"


def test_a_uri_needs_no_record(home: Home, tmp_path: Path) -> None:
    found = find_checkpoints(home.checkpoints.uri(10, 1), HomeFolder.find(tmp_path / "nowhere"))
    assert found.step == 10 and found.run is None
    assert found.checkpoints.manifest(10).step == 10
    named = find_checkpoints(f"{RUN}@15", HomeFolder.find(tmp_path / "nowhere", store=home.store.url))
    assert named.step == 15 and named.retention == Retention(2, 0, None)


def test_the_jobs_own_store_comes_first(home: Home, tmp_path: Path) -> None:
    elsewhere = (tmp_path / "elsewhere").as_uri()
    spec = dumped(job(checkpoints={"uri": elsewhere}))
    open_writer(home.url).create_run(RunRow("r2", name="second", namespace="default", spec=spec, created_at=2.0))
    assert find_checkpoints("second", HomeFolder.find(home.path)).checkpoints.store.url == elsewhere


def test_the_environment_names_record_and_store(home: Home, s3: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    url, keys = s3
    result = home.dapo("list", RUN, environment={**keys, "DAPO_METADATA_URL": home.url, "DAPO_STORE_URL": url})
    assert result.exit_code == 0 and f"has no committed checkpoint in {url}" in result.output, result.exception


def test_nothing_to_verify_is_an_error(home: Home) -> None:
    for step in home.checkpoints.steps():
        home.checkpoints.remove(step)
    assert isinstance(home.refused("verify", RUN), CheckpointError)
    assert "has no committed checkpoint in file:///" in home.told("list", RUN)
    assert open_store(home.store.url).url == home.store.url
