"""Whether a page would look different now."""

from collections.abc import Callable

import pytest

from dapo_dashboard.reads.cached_reader import CachedReader
from dapo_dashboard.reads.page_reads import PageReads, note_time


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        pytest.param([[1, 2], [1, 2]], False, id="equal"),
        pytest.param([[1, 2], [1, 3]], True, id="another"),
        pytest.param([[1], [2], [2]], True, id="another, read by somebody else before"),
    ],
)
def test_a_page_is_drawn_again_when_what_it_was_drawn_from_changed(values: list[list[int]], changed: bool) -> None:
    clock, answers = Clock(), iter(values)
    reader = CachedReader("", opener=lambda url: None, now=clock)  # type: ignore[arg-type,return-value]
    load: Callable[[object, object], list[int]] = lambda db, last: list(next(answers))  # noqa: E731
    page = PageReads()
    with page.noted():
        reader.read("k", load)
    assert not page.changed(), "nothing is read again while it is fresh"
    for _ in values[2:]:
        clock.now += 10
        reader.read("k", load)
    clock.now += 10
    assert page.changed() == changed


def test_what_is_read_outside_does_not_belong_to_the_page() -> None:
    page, answers = PageReads(), iter(range(9))
    reader = CachedReader("", opener=lambda url: None)  # type: ignore[arg-type,return-value]
    reader.read("k", lambda db, last: next(answers), max_age=-1)
    with page.noted():
        pass
    assert not page.changed()


def test_a_page_that_shows_durations_is_out_of_date_after_a_minute() -> None:
    clock, page = Clock(), PageReads()
    with page.noted():
        note_time(60, clock)
    clock.now += 59
    assert not page.changed()
    clock.now += 1
    assert page.changed()
