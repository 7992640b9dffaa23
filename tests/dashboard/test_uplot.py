"""uPlot comes out of its npm package, by hash."""

import io
import tarfile
from pathlib import Path

import pytest

from dapo_dashboard import browser_files, uplot


@pytest.mark.parametrize(
    ("env", "start"),
    [
        pytest.param({}, uplot.REGISTRY, id="npm's default"),
        pytest.param({"npm_config_registry": "http://mirror/npm/"}, "http://mirror/npm", id="as npm itself"),
        pytest.param({"NPM_CONFIG_REGISTRY": "http://other"}, "http://other", id="in capitals"),
    ],
)
def test_the_registry_is_that_of_npm(env: dict[str, str], start: str) -> None:
    assert uplot.url(env) == f"{start}/uplot/-/uplot-{uplot.VERSION}.tgz"


def _package(folder: Path) -> str:
    path = folder / "another.tgz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("package/LICENSE")
        archive.addfile(member, io.BytesIO())
    return path.as_uri()


def test_another_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(uplot.NoUPlotError, match="is not uPlot"):
        uplot.fetch(tmp_path / "uplot", _package(tmp_path))
    assert not (tmp_path / "uplot").exists()


def test_what_to_do_without_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(uplot.NoUPlotError, match="Set npm_config_registry"):
        uplot.fetch(tmp_path / "uplot", (tmp_path / "missing.tgz").as_uri())


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    for name in uplot.FILES.values():
        (tmp_path / name).touch()
    (tmp_path / "VERSION").write_text(uplot.VERSION)
    uplot.fetch(tmp_path, "file:///nowhere")
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
    assert imported <= scripts.keys() and f"/{browser_files.version()}/grid.js" in browser_files.loader("draw")
