"""The six rows of Table 1: as recipes, as the benchmark's runs, and as the benchmark tells them."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dapo_core.jobspec import load_job, parse_job, read_mapping
from dapo_core.jobspec.parse import absolute_paths
from dapo_trainer.local.command import with_values

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "examples" / "ablation").glob("*.yaml"))


@pytest.fixture(scope="module")
def benchmark() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield import_module("ablation")
    finally:
        sys.path.pop(0)


def recipe(row: int) -> dict[str, Any]:
    return load_job(RECIPES[row - 1]).spec.model_dump(by_alias=True, mode="json")


def techniques(algorithm: dict[str, Any]) -> tuple[bool, float, bool, str, bool]:
    overlong = algorithm["overlong"]
    return (
        overlong["filter"],
        algorithm["clipHigh"],
        bool(overlong["penalty"] and overlong["penalty"]["enabled"]),
        algorithm["lossAggregation"],
        algorithm["dynamicSampling"]["enabled"],
    )


TABLE_1 = [
    (False, 0.2, False, "SequenceMean", False),
    (True, 0.2, False, "SequenceMean", False),
    (True, 0.28, False, "SequenceMean", False),
    (True, 0.28, True, "SequenceMean", False),
    (True, 0.28, True, "TokenMean", False),
    (True, 0.28, True, "TokenMean", True),
]
ROWS = [pytest.param(row, expected, id=f"row-{row}") for row, expected in enumerate(TABLE_1, start=1)]


@pytest.mark.parametrize(("row", "expected"), ROWS)
def test_a_recipe_adds_one_technique_and_differs_in_nothing_else(row: int, expected: Any) -> None:
    mine, last = recipe(row), recipe(6)
    assert techniques(mine["algorithm"]) == expected
    assert mine | {"algorithm": {}} == last | {"algorithm": {}}


def test_the_last_row_is_the_papers_recipe() -> None:
    whole = load_job(ROOT / "examples" / "qwen2.5-32b-aime.yaml").spec.model_dump(by_alias=True, mode="json")
    assert recipe(6)["algorithm"] | {"preset": ""} == whole["algorithm"] | {"preset": ""}


@pytest.mark.parametrize(("row", "expected"), ROWS)
def test_the_benchmarks_rows_are_those(benchmark: Any, row: int, expected: Any) -> None:
    demo = ROOT / "examples" / "arithmetic.yaml"
    job = with_values(absolute_paths(read_mapping(demo), demo.parent), benchmark.settings(row))
    assert techniques(parse_job(job).spec.model_dump(by_alias=True, mode="json")["algorithm"]) == expected


def result(benchmark: Any, row: int, seed: int, accuracy: list[float], generated: list[int]) -> Any:
    """A run of as many steps as `generated` has, validated before, in the middle and at the end."""
    steps, middle = len(generated), len(generated) // 2
    spent = [0, sum(generated[:middle]), sum(generated)]
    return benchmark.Result(
        row=row,
        seed=seed,
        token_budget=1000,
        steps=steps,
        accuracy=list(zip([0, middle, steps], spent, accuracy, strict=True)),
        generated=generated,
        trained=[100] * steps,
        seconds=[2.0 + row] * steps,
        generation_seconds=[1.0] * steps,
        entropy=[0.1] * steps,
        length=[20.0] * steps,
        truncated=[0.0] * steps,
    )


def test_the_tables(benchmark: Any, tmp_path: Path) -> None:
    found = [
        result(benchmark, 5, 0, [0.2, 0.7, 0.9], [100] * 10),
        result(benchmark, 5, 1, [0.2, 0.8, 0.8], [100] * 10),
        result(benchmark, 6, 0, [0.2, 0.7, 0.9], [120] * 10),
        result(benchmark, 6, 1, [0.2, 0.5, 0.6], [120] * 10),
    ]
    rows = list(benchmark.table(found, [5, 6]))[2:]
    # Row 6 overshot to 1,200 tokens: at 1,000 it stood between its last two validations.
    assert rows == [
        "| 5 + token-level loss | 42 | 2 | 85.0% | 7.1% | - | 85.0% | 85.0% | 10 | 8 | 1 thousand |",
        "| 6 + dynamic sampling (DAPO) | 50 | 2 | 70.0% | 18.9% | -6.7, -23.3 | 75.0% | 75.0% | 10 | "
        "10 (1 of 2 did not) | 1 thousand |",
    ]
    prices = list(benchmark.price(found))[2:]
    assert prices[0] == "| 0 to 20 % | 1.20 | 8.00 | 7.00 | 1.00 and 1.00 |"
    assert [row.split(" |")[0] for row in prices] == [
        "| 0 to 20 %",
        "| 20 to 40 %",
        "| 40 to 60 %",
        "| 60 to 80 %",
        "| 80 to 100 %",
        "| all of it",
    ]

    page, results = tmp_path / "page.md", import_module("ablation_results")
    page.write_text(f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    results.write(page, "new")
    assert page.read_text() == f"before\n{results.BEGIN}\n\nnew\n\n{results.END}\nafter\n"

    import_module("ablation_figure").draw(found, [row.name for row in benchmark.ROWS], 0.8, tmp_path / "a.svg")
    assert "Seconds per step" in (tmp_path / "a.svg").read_text()
