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


def result(
    benchmark: Any,
    row: int,
    seed: int,
    accuracy: list[float],
    generated: list[int],
    replicate: int = 0,
    nll: float = 0.1,
) -> Any:
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
        replicate=replicate,
        nll=[nll] * steps,
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
        "| 5 + token-level loss | 42 | 2 | 85.0% | 7.1% | - | - | 85.0% | 85.0% | 10 |",
        "| 6 + dynamic sampling (DAPO) | 50 | 2 | 70.0% | 18.9% | -6.7, -23.3 | -15.0 ± 105.9 | 75.0% | 75.0% | 10 |",
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

    import_module("ablation_figure").draw(found, [row.name for row in benchmark.ROWS], tmp_path / "a.svg")
    assert "Seconds per step" in (tmp_path / "a.svg").read_text()


def test_the_first_row_of_the_first_seed_is_repeated(benchmark: Any) -> None:
    plan = list(benchmark.planned([1, 2], [0, 1], 3))
    assert plan == [(1, 0, 0), (2, 0, 0), (1, 1, 0), (2, 1, 0), (1, 0, 1), (1, 0, 2)]
    assert len({benchmark.name_of(*run) for run in plan}) == len(plan)


@pytest.mark.parametrize(
    ("values", "expected", "excludes"),
    [
        pytest.param([1.4, -0.5, -0.1], "+0.3 ± 2.5", False, id="row 2 as recorded"),
        pytest.param([-4.0, -0.3, -3.0], "-2.4 ± 4.8", False, id="row 4: lower in every seed, and still chance"),
        pytest.param([2.0, 2.2, 1.8], "+2.0 ± 0.5", True, id="a difference"),
        pytest.param([1.0, 1.0], "+1.0 ± 0.0", True, id="without any spread"),
    ],
)
def test_an_interval_is_students(benchmark: Any, values: list[float], expected: str, excludes: bool) -> None:
    interval = import_module("ablation_comparison").Interval.of(values)
    assert (str(interval), interval.excludes_zero) == (expected, excludes)


def test_one_seed_has_no_interval(benchmark: Any) -> None:
    with pytest.raises(ValueError, match="no interval"):
        import_module("ablation_comparison").Interval.of([1.0])


def test_a_sentence_needs_an_interval_that_excludes_zero(benchmark: Any) -> None:
    """Row 6 gains ten points in each seed; what it generates is likelier in one seed, and less likely in another."""
    comparison, surprised = import_module("ablation_comparison"), {0: 0.05, 1: 0.15, 2: 0.1}
    found = [result(benchmark, 5, seed, [0.2, 0.5, 0.70 + seed / 100], [100] * 10) for seed in range(3)]
    found += [
        result(benchmark, 6, seed, [0.2, 0.5 + (-1) ** seed / 100, 0.80 + seed / 100], [100] * 10, nll=surprised[seed])
        for seed in range(3)
    ]
    *said, count = comparison.sentences(found, [5, 6])
    assert said == [
        "- Row 6 (+ dynamic sampling (DAPO)): accuracy at the budget differs from row 5 by +10.0 points "
        "(95 % interval +10.0 to +10.0, 3 seeds).",
        "- Row 6 (+ dynamic sampling (DAPO)): accuracy over the last third of the budget differs from row 5 by +10.0 "
        "points (95 % interval +10.0 to +10.0, 3 seeds).",
        "- Row 6 (+ dynamic sampling (DAPO)): accuracy at step 10 differs from row 5 by +10.0 points "
        "(95 % interval +10.0 to +10.0, 3 seeds).",
    ]
    assert count == "- 3 of 4 intervals exclude zero; by chance alone, 0.2 would."


def test_repeats_stand_beside_one_another_and_in_no_comparison(benchmark: Any) -> None:
    comparison = import_module("ablation_comparison")
    first = [result(benchmark, 1, 0, [0.2, 0.5, 0.9], [100] * 10)]
    again = [result(benchmark, 1, 0, [0.2, 0.5, 0.9 + n / 50], [100] * 10, replicate=n) for n in (1, 2)]
    assert list(comparison.repeats(first)) == []
    lines = list(comparison.repeats(first + again))
    assert lines[0] == "| 3 runs of row 1, seed 0 | each | standard deviation |"
    assert lines[2] == "| accuracy at the budget, points | 90.0, 92.0, 94.0 | 2.0 |"
    assert list(comparison.table(first + again, [1])) == list(comparison.table(first, [1]))
    assert list(comparison.sentences(first + again, [1])) == []
