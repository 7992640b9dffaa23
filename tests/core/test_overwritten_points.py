"""Points that a newer attempt has overwritten: which they are, and that reading them is bounded."""

from collections.abc import Sequence

import pytest
from metadata_databases import metadata_url, reader, writer

from dapo_core.db import AttemptRow, MetadataReader, MetadataWriter, Point, RunRow, WriteBatch, repeated_steps

__all__ = ["metadata_url", "reader", "writer"]

Span = tuple[int | None, int | None]


def attempts(*spans: Span) -> list[AttemptRow]:
    """Attempts 1, 2, ... by the step that each resumed from and the last one it finished."""
    return [AttemptRow("r", at + 1, 0.0, step_from=first, step_to=last) for at, (first, last) in enumerate(spans)]


@pytest.mark.parametrize(
    ("spans", "places"),
    [
        pytest.param([], [], id="no attempt"),
        pytest.param([(0, 9)], [], id="one attempt"),
        pytest.param([(0, 9), (9, 12)], [], id="resumed where it ended"),
        pytest.param([(0, 9), (6, None)], [], id="has not finished a step again"),
        pytest.param([(0, 9), (None, None), (6, 12)], [(7, 1), (8, 1), (9, 1)], id="one that never began"),
        pytest.param([(0, 9), (6, 8)], [(7, 1), (8, 1)], id="is still repeating"),
        pytest.param([(None, 1), (0, 1)], [(0, 1), (1, 1)], id="from the start, with what step 0 recorded"),
        pytest.param([(0, 9), (6, 12), (7, 10)], [(7, 1), (8, 2), (9, 2), (10, 2)], id="of three, the newest but one"),
        pytest.param([(0, 3), (2, 9), (8, 11)], [(3, 1), (9, 2)], id="twice, apart"),
        pytest.param([(0, 3), (10, 13), (3, 12)], [(11, 2), (12, 2)], id="steps that no earlier one finished"),
    ],
)
def test_the_steps_that_were_repeated(spans: Sequence[Span], places: list[tuple[int, int]]) -> None:
    assert repeated_steps(attempts(*spans), 100) == places


@pytest.mark.parametrize(
    ("most", "window", "steps"),
    [
        pytest.param(100, (25, 27), [25, 26, 27], id="a range that is shown"),
        pytest.param(100, (1, 10), [], id="a range without any"),
        pytest.param(10, (None, None), [22, 24, 26, 28, 30, 32, 34, 36, 38, 40], id="every second"),
        pytest.param(9, (None, None), [25, 30, 35, 40], id="every fifth"),
        pytest.param(2, (None, None), [30, 40], id="every tenth"),
    ],
)
def test_there_are_no_more_than_a_chart_shows(
    most: int, window: tuple[int | None, int | None], steps: list[int]
) -> None:
    assert [step for step, _ in repeated_steps(attempts((0, 40), (20, 60)), most, *window)] == steps


def test_many_long_attempts_are_as_few_points() -> None:
    lives = attempts(*((0, 1_000_000 - number) for number in range(50)))
    assert 100 <= len(repeated_steps(lives, 300)) <= 300


def points(metric: str, attempt: int, steps: Sequence[int]) -> list[Point]:
    return [Point.of(metric, step, attempt, float(step), 100.0 * attempt + step) for step in steps]


def test_the_points_that_were_overwritten(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.create_run(RunRow("r", "r"))
    for row in attempts((0, None), (6, None), (7, None)):
        writer.start_attempt(row)
    first = [*points("m", 1, range(10)), *points("v", 1, [5, 8]), *points("once", 1, range(10))]
    second = [*points("m", 2, range(7, 10)), *points("v", 2, [8])]
    writer.write("r", WriteBatch(points=[*first, *second, *points("m", 3, [8])]))
    writer.write("other", WriteBatch(points=[*points("m", 1, range(10)), *points("m", 2, range(10))]))
    places = repeated_steps(reader.attempts("r"), 300)
    assert places == [(7, 1), (8, 2), (9, 1)]
    found = reader.overwritten("r", ["m", "v", "once", "unknown"], places)
    # Of v, step 8 of attempt 2 is the newest: attempt 3 has not recorded it.
    assert {name: [(each.step, each.attempt, each.value) for each in curve] for name, curve in found.items()} == {
        "m": [(7, 1, 107.0), (8, 2, 208.0), (9, 1, 109.0)]
    }
    assert reader.overwritten("r", ["m"], []) == {} == reader.overwritten("none", ["m"], places)
