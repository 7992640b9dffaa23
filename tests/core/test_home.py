"""Where runs lie: options before environment, the same for every command."""

from pathlib import Path

import pytest

from dapo_core.run.home import Home, NoRunsError

# --home, --metadata, environment -> folder, metadata store
FOUND: dict[str, tuple[str | None, str | None, dict[str, str], tuple[str, str]]] = {
    "nothing is named": (None, None, {}, ("runs", "sqlite:///{cwd}/runs/dapo.db")),
    "DAPO_HOME": (None, None, {"DAPO_HOME": "h"}, ("h", "sqlite:///{cwd}/h/dapo.db")),
    "DAPO_METADATA_URL": (None, None, {"DAPO_METADATA_URL": "postgresql://p"}, ("runs", "postgresql://p")),
    "both": (None, None, {"DAPO_HOME": "h", "DAPO_METADATA_URL": "postgresql://p"}, ("h", "postgresql://p")),
    "--home before both": (
        "x",
        None,
        {"DAPO_HOME": "h", "DAPO_METADATA_URL": "postgresql://p"},
        ("x", "sqlite:///{cwd}/x/dapo.db"),
    ),
    "--metadata before --home": ("x", "sqlite:///m", {"DAPO_METADATA_URL": "postgresql://p"}, ("x", "sqlite:///m")),
}


@pytest.fixture(autouse=True)
def _nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DAPO_HOME", "DAPO_METADATA_URL", "DAPO_STORE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("home", "metadata", "environment", "expected"), FOUND.values(), ids=FOUND.keys())
def test_where_runs_lie(
    home: str | None,
    metadata: str | None,
    environment: dict[str, str],
    expected: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = Home.find(Path(home) if home else None, metadata)
    folder, url = expected
    assert (found.path, found.metadata_url) == (tmp_path / folder, url.format(cwd=tmp_path))


def test_objects_lie_where_they_are_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Home.find().store_url == (tmp_path / "runs" / "store").as_uri()
    monkeypatch.setenv("DAPO_STORE_URL", "s3://bucket/runs")
    assert (Home.find().store_url, Home.find(store="file:///s").store_url) == ("s3://bucket/runs", "file:///s")


def test_a_home_without_a_database_has_no_runs(tmp_path: Path) -> None:
    with pytest.raises(NoRunsError, match=f"There are no runs in {tmp_path / 'runs'}: start one with `dapo run"):
        _ = Home.find().recorded_url
    assert Home.find(metadata="sqlite:///m").recorded_url == "sqlite:///m"
