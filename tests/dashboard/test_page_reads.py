"""Whether a page would look different now."""

from collections.abc import Callable

import pytest

from dapo_dashboard.reads.cached_reader import CachedReader
from dapo_dashboard.reads.page_reads import PageReads, Stillness, note, note_time


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


def test_a_store_that_is_still_is_not_read_again() -> None:
    clock, reads = Clock(), [0]
    shown = ["first"]
    still = Stillness("v1", clock.now)

    def again() -> str:
        reads[0] += 1
        return shown[0]

    page = PageReads(lambda: still, clock)
    with page.noted():
        note(again, shown[0], max_age=15)
    expected = []
    for seconds in (10, 10, 10, 10):
        clock.now += seconds
        assert not page.changed()
        expected.append(reads[0])
    assert expected == [1, 2, 2, 2], "what is kept for 15 seconds may be older than the last change for so long"
    still = Stillness("v2", clock.now)
    assert not page.changed() and reads == [3]
    shown[0] = "second"
    assert page.changed()


def test_a_store_whose_version_is_unknown_is_read_each_time() -> None:
    page, reads = PageReads(lambda: None), [0]

    def again() -> None:
        reads[0] += 1

    with page.noted():
        note(again, None, max_age=0)
    assert [page.changed() for _ in range(3)] == [False] * 3 and reads == [3]
