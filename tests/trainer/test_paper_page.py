"""docs/paper.md says what the recipe is: every field it names exists, every number is the composed job's."""

import re
from pathlib import Path
from typing import Any

import pytest

from dapo_core.jobspec import load_job

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples" / "qwen2.5-32b-aime.yaml"
FIELD = re.compile(r"`([a-zA-Z]+(?:\.[a-zA-Z]+|\[\])*)`")
# Fields whose cell says in words what they hold.
WORDS = {"topology", "verlOverrides", "data.train", "algorithm.preset", "algorithm.overlong.penalty", "model.source"}


def rows() -> list[tuple[str, str]]:
    """Field and value cells of the tables that have a column `field`."""
    found, inside = [], False
    for line in (ROOT / "docs" / "paper.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        inside = line.startswith("|") and (inside or (len(cells) > 2 and cells[1] == "field"))
        if inside and cells[1] != "field" and not cells[1].startswith("-"):
            found.append((cells[1], cells[2]))
    return found


def named(cell: str) -> list[str]:
    """Dotted paths of a cell; a name without a group belongs to the group of the one before it."""
    paths: list[str] = []
    for name in FIELD.findall(cell):
        group = paths[-1].rpartition(".")[0] if paths else ""
        alone = "." not in name and name not in WORDS and bool(group)
        paths.append(f"{group}.{name}" if alone else name)
    return paths


def value_of(path: str) -> Any:
    job = load_job(RECIPE).model_dump(by_alias=True, mode="json")["spec"]
    for name in path.replace("[]", ".0").split("."):
        job = job[int(name)] if isinstance(job, list) else job[name]
    return job


@pytest.mark.parametrize(("field", "value"), rows(), ids=lambda cell: cell.replace("`", "")[:60])
def test_a_line_of_the_page(field: str, value: str) -> None:
    paths = named(field)
    assert paths, f"{field} names no field"
    found = [value_of(path) for path in paths]
    numbers = [float(number) for number in re.findall(r"(?<![\w@.])\d+(?:\.\d+)?(?:e-\d+)?(?![\w@])", value)]
    if not WORDS & set(paths) and numbers:
        assert numbers[: len(found)] == pytest.approx([float(one) for one in found if isinstance(one, int | float)])


def test_the_page_has_its_tables() -> None:
    assert len(rows()) > 30
