"""`make audit`: known vulnerabilities of the locked packages.

By pip-audit and OSV's service; or, where DAPO_OSV_EXPORT names OSV's export of PyPI (a zip file or a folder of its
records), by that. Exit code 0: none but those that requirements/vulnerabilities.toml explains; 1: others; 2: nobody
could be asked, which is no answer.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

REQUIREMENTS: Final = Path(__file__).parents[2] / "requirements"
EXPORT: Final = "DAPO_OSV_EXPORT"
EXPORT_URL: Final = "https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip"
# An older export does not know what was found since.
MOST_AGE: Final = timedelta(days=30)
_LOCKED: Final = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
Package = tuple[str, str]
Record = Mapping[str, Any]


class NoAnswerError(Exception):
    """Nobody could be asked; the sentence says why, and what to do."""


@dataclass(frozen=True)
class Vulnerability:
    """A vulnerability of a locked package, with all the names that it has."""

    package: Package
    names: tuple[str, ...]
    fixed_in: str


def locked_packages(folder: Path) -> dict[Package, list[str]]:
    """The lock files of each package and version."""
    found: dict[Package, list[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        for name, version in _LOCKED.findall(path.read_text(encoding="utf-8")):
            found.setdefault((canonicalize_name(name), version), []).append(path.name)
    return found


def records(export: Path) -> Iterator[Record]:
    """The records of OSV's export, a zip file or a folder. Raises NoAnswerError."""
    try:
        if export.is_dir():
            yield from (json.loads(path.read_bytes()) for path in sorted(export.glob("*.json")))
            return
        with zipfile.ZipFile(export) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    yield json.loads(archive.read(name))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise NoAnswerError(
            f"{EXPORT} is {export}, which cannot be read ({error}): it has to be {EXPORT_URL}."
        ) from error


def in_export(packages: Iterable[Package], known: Iterable[Record], now: datetime) -> list[Vulnerability]:
    """What the records say about the packages. Raises NoAnswerError for records that are none or old."""
    versions: dict[str, list[str]] = {}
    for name, version in packages:
        versions.setdefault(name, []).append(version)
    found, newest = [], ""
    for record in known:
        newest = max(newest, record.get("modified", ""))
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected", ()):
            package = affected.get("package", {})
            name = canonicalize_name(package.get("name", ""))
            if package.get("ecosystem") == "PyPI" and name in versions:
                found += [
                    Vulnerability((name, version), (record["id"], *record.get("aliases", ())), _fixed_in(affected))
                    for version in versions[name]
                    if is_affected(version, affected)
                ]
    if not newest or now - datetime.fromisoformat(newest) > MOST_AGE:
        age = f"ends at {newest}" if newest else "has no records"
        raise NoAnswerError(f"The export of {EXPORT} {age}: get {EXPORT_URL} again.")
    return found


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Whether an entry of a record is about this version: by its list of versions, or by a range."""
    return version in affected.get("versions", ()) or any(
        _in_range(version, each.get("events", ())) for each in affected.get("ranges", ()) if each["type"] == "ECOSYSTEM"
    )


def _in_range(text: str, events: Iterable[Mapping[str, str]]) -> bool:
    """The events of a range, in order of their versions: from `introduced` to before `fixed`, or to `last_affected`."""
    version, inside = Version(text), False
    try:
        bounds = [(Version(at), kind) for event in events for kind, at in event.items() if kind != "limit"]
    except InvalidVersion:  # what cannot be compared may be about any version
        return True
    for bound, kind in sorted(bounds, key=lambda each: each[0]):
        if version < bound or (version == bound and kind == "last_affected"):
            break
        inside = kind == "introduced"
    return inside


def _fixed_in(affected: Mapping[str, Any]) -> str:
    events = [event for each in affected.get("ranges", ()) for event in each.get("events", ())]
    return ", ".join(event["fixed"] for event in events if "fixed" in event)


def by_service(files: Iterable[Path]) -> list[Vulnerability]:
    """What OSV's service says, through pip-audit. Raises NoAnswerError."""
    found = []
    for path in files:
        command = ["pip-audit", "--strict", "--vulnerability-service=osv", "--format=json", "--progress-spinner=off"]
        # Strict: a package that could not be asked about is an error, not a pass.
        told = subprocess.run(
            [*command, "--disable-pip", "--require-hashes", f"--requirement={path}"], capture_output=True, text=True
        )
        try:
            dependencies = json.loads(told.stdout)["dependencies"]
        except (ValueError, KeyError):
            why = (told.stderr.strip().splitlines() or ["no output"])[-1]
            raise NoAnswerError(
                f"pip-audit got no answer about {path.name} ({why[:300]}). Without access to api.osv.dev, get "
                f"{EXPORT_URL} elsewhere and set {EXPORT} to it."
            ) from None
        found += [
            Vulnerability(
                (canonicalize_name(each["name"]), each["version"]),
                (one["id"], *one.get("aliases", ())),
                ", ".join(one.get("fix_versions", ())),
            )
            for each in dependencies
            for one in each.get("vulns", ())
        ]
    return found


def explained(content: str, today: date) -> frozenset[str]:
    """The names of vulnerabilities that are accepted today. Raises ValueError for one without a reason or a day."""
    accepted = tomllib.loads(content)
    for name, entry in accepted.items():
        if not entry.get("reason") or not isinstance(entry.get("until"), date):
            raise ValueError(f"requirements/vulnerabilities.toml: {name} needs a reason and until, a day.")
    return frozenset(name for name, entry in accepted.items() if entry["until"] >= today)


def main() -> int:
    packages, now = locked_packages(REQUIREMENTS), datetime.now(UTC)
    accepted = explained((REQUIREMENTS / "vulnerabilities.toml").read_text(encoding="utf-8"), now.date())
    files = [REQUIREMENTS / name for name in sorted({name for names in packages.values() for name in names})]
    try:
        export = os.environ.get(EXPORT)
        found = in_export(packages, records(Path(export)), now) if export else by_service(files)
    except NoAnswerError as error:
        print(error, file=sys.stderr)
        return 2
    left = sorted({each for each in found if not accepted.intersection(each.names)}, key=lambda each: each.package)
    for each in left:
        (name, version), files_of = each.package, ", ".join(packages[each.package])
        print(f"{name} {version} ({files_of}): {', '.join(each.names)}; fixed in {each.fixed_in or 'no version'}")
    print(f"{len(packages)} locked packages: {len(left)} vulnerabilities, {len(set(found)) - len(left)} explained.")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
