"""What a user can set or meet is documented: variables, conditions, pages; and links between pages lead somewhere."""

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from dapo_core.run.status import ConditionType

ROOT = Path(__file__).parents[2]
SOURCES = ("core", "trainer", "operator", "dashboard", "charts", "scripts", "tests")
VARIABLE = re.compile(r"\bDAPO_[A-Z0-9]+(?:_[A-Z0-9]+)*\b(?!_)")
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "examples" / "README.md"])


def tracked(*places: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z", *places], cwd=ROOT, capture_output=True, check=True, text=True)
    return [ROOT / name for name in names.stdout.split("\0") if name]


def variables(paths: list[Path]) -> set[str]:
    return {name for path in paths if path.exists() for name in VARIABLE.findall(path.read_text(errors="replace"))}


def test_every_environment_variable_is_documented_and_nothing_else() -> None:
    used = variables([*tracked(*SOURCES), ROOT / "Makefile", ROOT / ".ci" / "run"])
    documented = variables([ROOT / "docs" / "environment.md"])
    assert (sorted(used - documented), sorted(documented - used)) == ([], [])


@pytest.mark.parametrize("condition", get_args(ConditionType))
def test_every_condition_is_documented(condition: str) -> None:
    assert condition in re.findall(r"^### (\w+)$", (ROOT / "docs" / "operator.md").read_text(), flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_every_page_is_linked_from_the_readme_or_another_page() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if not re.match(r"[a-z]+:", target)
    }
    assert [path.name for path in PAGES if path not in linked and path.name != "README.md"] == []
