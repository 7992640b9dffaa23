"""The runs that come with the platform, and the command that shows them."""

import sqlite3
from pathlib import Path

import pytest

from dapo_core.db import ENDED_STATES, open_reader, upgrade
from dapo_core.objectstore import open_store
from dapo_core.run import metrics
from dapo_dashboard import demo_runs, launch
from dapo_dashboard.reads.stored_samples import read_samples

MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_runs.unpack(tmp_path_factory.mktemp("cache"))


def test_the_demo_is_small_and_unpacked_once(tmp_path: Path) -> None:
    assert demo_runs.ARCHIVE.stat().st_size < MOST_BYTES
    folder = demo_runs.unpack(tmp_path)
    (folder / "kept").touch()
    assert demo_runs.unpack(tmp_path) == folder and (folder / "kept").exists()


def test_the_demo_shows_what_happens_to_runs(unpacked: Path) -> None:
    reader = open_reader(f"sqlite:///{unpacked / 'dapo.db'}")
    rows = {row.run_id: row for row in reader.run_table([metrics.ACCURACY_GENERATED])}
    assert len(rows) >= 4 and all(row.state in ENDED_STATES for row in rows.values())
    learned = [row for row in rows.values() if row.values[metrics.ACCURACY_GENERATED].number > 0.85]
    assert learned and len(learned) < len(rows), "some learn and some do not"
    assert any(row.attempts > 1 for row in rows.values()), "one was restarted"
    assert reader.alerts(), "a rule held"
    store = (unpacked / "store").as_uri()
    for run_id in rows:
        for sample in reader.samples(run_id):
            assert len(read_samples(store, sample)) == sample.rows
    assert open_store(store)


def test_the_demo_says_nothing_of_the_machine_it_was_trained_on(unpacked: Path) -> None:
    with sqlite3.connect(unpacked / "dapo.db") as connection:
        text = "\n".join(connection.iterdump())
    assert "file:///demo" in text
    text = text.replace("/tmp/ray/session_latest", "")  # verl's own default
    assert not [part for part in ("/root/", "/home/", "/work/", "/tmp/") if part in text]


@pytest.mark.parametrize("kind", ["home", "url", "nothing", "demo"])
def test_what_is_shown(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("DAPO_METADATA_URL", "DAPO_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAPO_STORE_URL", "s3://bucket/runs")
    (tmp_path / "runs").mkdir()
    if kind != "nothing":
        upgrade(f"sqlite:///{tmp_path / 'runs' / 'dapo.db'}")
    env = launch.environment(None, "postgresql://h/d" if kind == "url" else None, kind == "demo")
    shown = {
        "home": f"sqlite:///{tmp_path / 'runs' / 'dapo.db'}",
        "url": "postgresql://h/d",
        "nothing": f"sqlite:///{next(iter((tmp_path / 'cache' / 'dapo').glob('*')), tmp_path) / 'dapo.db'}",
        "demo": f"sqlite:///{next(iter((tmp_path / 'cache' / 'dapo').glob('*')), tmp_path) / 'dapo.db'}",
    }
    assert env["DAPO_METADATA_URL"] == shown[kind]
    if kind in ("nothing", "demo"):
        assert env["DAPO_STORE_URL"].startswith("file://"), "the demo's objects come with it"
    elif kind == "home":
        assert env["DAPO_STORE_URL"] == "s3://bucket/runs", "where `dapo run` puts them"
    assert env.get("DAPO_DASHBOARD_DEMO") == {"home": "0", "url": None, "nothing": "1", "demo": "1"}[kind]
