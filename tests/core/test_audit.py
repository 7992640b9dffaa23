"""`make audit` with a database of its own: which locked packages are affected, and that no answer is no pass."""

import json
import re
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from audit import EXPORT, NoAnswerError, explained, in_export, is_affected, locked_packages, main, records

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def record(**fields: Any) -> dict[str, Any]:
    entry = {
        "package": {"ecosystem": "PyPI", "name": "Some.Package"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "1.0"}, {"fixed": "2.0"}]}],
    }
    return {"id": "PYSEC-1", "aliases": ["CVE-1"], "modified": "2026-11-20T00:00:00Z", "affected": [entry], **fields}


@pytest.mark.parametrize(
    ("version", "events", "affected"),
    [
        ("0.9", [{"introduced": "1.0"}, {"fixed": "2.0"}], False),
        ("1.0", [{"introduced": "1.0"}, {"fixed": "2.0"}], True),
        ("1.10", [{"introduced": "1.0"}, {"fixed": "1.9"}], False),
        ("2.0rc1", [{"introduced": "1.0"}, {"fixed": "2.0"}], True),
        ("2.0", [{"introduced": "1.0"}, {"fixed": "2.0"}], False),
        ("2.0", [{"introduced": "0"}], True),
        ("2.0", [{"introduced": "0"}, {"last_affected": "2.0"}], True),
        ("2.0.1", [{"introduced": "0"}, {"last_affected": "2.0"}], False),
        ("3.5", [{"introduced": "0"}, {"fixed": "2.0"}, {"introduced": "3.0"}, {"fixed": "4.0"}], True),
        ("3.5", [{"introduced": "0"}, {"fixed": "not a version"}], True),
        ("2.13.0+cu130", [{"introduced": "0"}, {"fixed": "2.13.1"}], True),
    ],
)
def test_ranges(version: str, events: list[dict[str, str]], affected: bool) -> None:
    assert is_affected(version, {"ranges": [{"type": "ECOSYSTEM", "events": events}]}) is affected


def test_listed_versions_count_and_git_ranges_do_not() -> None:
    assert is_affected("1.2", {"versions": ["1.2"]})
    assert not is_affected("1.2", {"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]})


def test_a_locked_package_is_found_by_its_normal_name() -> None:
    [found] = in_export([("some-package", "1.5"), ("other", "1.5")], [record()], NOW)
    assert (found.package, found.names, found.fixed_in) == (("some-package", "1.5"), ("PYSEC-1", "CVE-1"), "2.0")
    assert in_export([("some-package", "1.5")], [record(withdrawn="2026-11-21T00:00:00Z")], NOW) == []


@pytest.mark.parametrize(
    ("known", "words"),
    [([], "has no records"), ([record(modified="2026-01-01T00:00:00Z")], "ends at 2026-01-01")],
    ids=["empty", "old"],
)
def test_an_export_that_knows_nothing_new_is_no_answer(known: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(NoAnswerError, match=words):
        in_export([("other", "1.0")], known, NOW)


def test_all_locked_packages_are_looked_up() -> None:
    requirements = Path(__file__).parents[2] / "requirements"
    found = locked_packages(requirements)
    lines = [line for path in requirements.glob("*.txt") for line in path.read_text().splitlines()]
    first = {line.split()[0].lower() for line in lines if line[:1].isalpha()}
    locked = {re.sub(r"\[.*\]", "", word) for word in first if "==" in word}
    assert len(found) == len(locked) > 250
    assert {"build.txt", "gpu.txt", "operator.txt"} <= {name for names in found.values() for name in names}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "folder"])
def test_an_export_is_read_whole(zipped: bool, tmp_path: Path) -> None:
    if zipped:
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            archive.writestr("PYSEC-1.json", json.dumps(record()))
    else:
        (tmp_path / "PYSEC-1.json").write_text(json.dumps(record()))
    assert list(records(tmp_path / "all.zip" if zipped else tmp_path)) == [record()]


def test_a_missing_export_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(EXPORT, str(tmp_path / "none.zip"))
    assert main() == 2
    assert "cannot be read" in capsys.readouterr().err


def test_without_an_answer_of_the_service_there_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pip-audit").write_text("#!/bin/sh\necho no route to api.osv.dev >&2\nexit 1\n")
    (tmp_path / "pip-audit").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv(EXPORT, raising=False)
    assert main() == 2
    assert "no route to api.osv.dev" in capsys.readouterr().err


def test_an_explanation_has_a_reason_and_an_end() -> None:
    content = '[CVE-1]\nreason = "not reachable"\nuntil = 2026-12-31\n'
    assert explained(content, date(2026, 12, 31)) == {"CVE-1"}
    assert explained(content, date(2027, 1, 1)) == frozenset()
    with pytest.raises(ValueError, match="CVE-2 needs a reason"):
        explained("[CVE-2]\nuntil = 2026-12-31\n", NOW.date())
