"""Reads that outlive the store."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dashboard_data
import pytest

from dapo_core.db import Bucket, MetadataReader
from dapo_core.errors import StoreError
from dapo_core.run.metrics import STEP_SECONDS
from dapo_dashboard.reads.cached_reader import PAUSE_SECONDS, CachedReader, NewestVersions, NothingReadError
from dapo_dashboard.reads.curve_feed import REREAD_STEPS, read_curves


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def cached_reader(clock: Clock) -> CachedReader:
    return CachedReader("", opener=lambda url: None, now=clock)  # type: ignore[arg-type,return-value]


def failing(reader: Any, last: Any) -> int:
    raise StoreError("The database is away.")


def test_an_answer_is_shared_while_it_is_fresh() -> None:
    clock, calls = Clock(), []
    one = cached_reader(clock)

    def load(reader: Any, last: int | None) -> int:
        calls.append(last)
        return len(calls)

    assert one.read("k", load).value == one.read("k", load).value == 1
    clock.now += 1
    assert one.read("k", load).value == 2
    assert calls == [None, 1], "a load is given its last answer"
    one.forget("k")
    assert one.read("k", load).value == 3


def test_the_last_answer_is_given_with_its_age_while_the_store_is_down() -> None:
    clock = Clock()
    one = cached_reader(clock)
    assert one.read("k", lambda reader, _: 7).value == 7
    clock.now += 60
    reading = one.read("k", failing)
    assert (reading.value, reading.at, reading.problem) == (7, 1000.0, "The database is away.")
    assert one.outage is not None and one.outage.since == 1060.0
    clock.now += PAUSE_SECONDS + 1
    assert one.read("k", lambda reader, _: 8).value == 8
    assert one.outage is None, "it recovers by itself"


def test_a_store_that_has_just_failed_is_left_alone() -> None:
    clock, calls = Clock(), []
    one = cached_reader(clock)
    with pytest.raises(NothingReadError, match="away"):
        one.read("a", failing)
    with pytest.raises(NothingReadError, match="away"):
        one.read("b", lambda reader, _: calls.append(1))
    assert calls == [] and not one.is_up()


def test_one_viewer_asks_and_the_others_wait_for_the_answer() -> None:
    one, calls, gate = cached_reader(Clock()), [], threading.Event()

    def slow(reader: Any, last: Any) -> int:
        calls.append(1)
        gate.wait(10)
        return 1

    threads = [threading.Thread(target=lambda: one.read("k", slow)) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(10)
    assert calls == [1]


def test_a_database_that_is_not_there_yet_is_no_end(tmp_path: Path) -> None:
    clock = Clock()
    one = CachedReader(f"sqlite:///{tmp_path / 'dapo.db'}", now=clock)
    with pytest.raises(NothingReadError):
        one.read("runs", lambda reader, _: reader.runs())
    dashboard_data.Store(tmp_path)
    clock.now += PAUSE_SECONDS + 1
    assert one.read("runs", lambda reader, _: reader.runs()).value == []


def test_curves_grow_by_what_is_new_and_follow_a_restart(tmp_path: Path) -> None:
    store, clock = dashboard_data.Store(tmp_path), Clock()
    run = store.run("r", steps=10)
    one, names = CachedReader(store.url, now=clock), ["actor/entropy"]
    first = read_curves(one, run, names).value.curves["actor/entropy"]
    store.steps(run, range(11, 13))
    clock.now += 5
    grown = read_curves(one, run, names).value.curves["actor/entropy"]
    assert [bucket.step_to for bucket in grown] == list(range(1, 13)) and list(grown[:7]) == list(first[:7])
    store.attempt(run, 2, 5)
    store.steps(run, range(6, 8), attempt=2, shapes={"actor/entropy": lambda step: 9.0})
    clock.now += 5
    redone = {b.step_to: b.mean for b in read_curves(one, run, names).value.curves["actor/entropy"]}
    assert redone[6] == redone[7] == 9.0 and redone[12] != 9.0
    window = read_curves(one, run, names, (3, 5)).value.curves["actor/entropy"]
    assert [bucket.step_to for bucket in window] == [3, 4, 5]


@pytest.mark.parametrize(("steps", "start"), [(32, 20), (700, 500)], ids=["single steps", "buckets of several steps"])
def test_b22_a_live_page_shows_the_steps_that_a_restart_repeats(tmp_path: Path, steps: int, start: int) -> None:
    store, clock, names = dashboard_data.Store(tmp_path), Clock(), ["actor/entropy"]
    run = store.run("r", steps=steps)
    one = CachedReader(store.url, now=clock)
    read_curves(one, run, names)
    store.attempt(run, 2, start)
    clock.now += 5
    read_curves(one, run, names)
    for step in range(start + 1, start + 10, 3):
        store.steps(run, range(step, step + 3), attempt=2, shapes={"actor/entropy": lambda step: 9.0})
        clock.now += 5
        curve = read_curves(one, run, names).value.curves["actor/entropy"]
        reached = [bucket.mean for bucket in curve if start < bucket.step_from and bucket.step_to < step + 3]
        assert reached and set(reached) == {9.0}, step
        assert curve[-1].step_to == steps


def test_what_a_restart_overwrites_is_read_while_it_does_and_never_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, names = dashboard_data.Store(tmp_path), Clock(), ["actor/entropy", "actor/grad_norm"]
    run = store.run("r", steps=10)
    one, read = CachedReader(store.url, now=clock), list[object]()
    found = MetadataReader.overwritten
    monkeypatch.setattr(MetadataReader, "overwritten", lambda *given: read.append(given[-1]) or found(*given))

    def shown(window: tuple[int, int] | None = None) -> list[tuple[int, float | None]]:
        clock.now += 5
        curves = read_curves(one, run, names, window).value.overwritten.curves
        return [(bucket.step_to, bucket.mean) for bucket in curves.get("actor/entropy", ())]

    assert shown() == [] and shown((2, 8)) == [] and read == [], "one attempt costs nothing"
    old = dashboard_data.SHAPES["actor/entropy"]
    store.attempt(run, 2, 5)
    assert shown() == [] and read == [], "nothing is repeated yet"
    for step in range(6, 17):
        store.steps(run, [step], attempt=2, shapes={"actor/entropy": lambda step: 9.0})
        assert shown() == [(at, old(at)) for at in range(6, min(step, 10) + 1)]
    whole = len(read)
    # The metrics of the last of these steps may come late: that long it is read again.
    assert whole == 5 + REREAD_STEPS
    version = read_curves(one, run, names).value
    assert shown() and read_curves(one, run, names).value is version and len(read) == whole
    assert [step for step, _ in shown((7, 9))] == [7, 8, 9] == [step for step, _ in shown((7, 9))]
    assert len(read) == whole + 1


def test_page_reads(tmp_path: Path) -> None:
    store = dashboard_data.Store(tmp_path)
    store.run("r", steps=9)
    one = CachedReader(store.url)
    moments = one.read("moments", lambda reader, _: reader.moments("r", STEP_SECONDS, 3)).value
    assert [step for step, _ in moments] == [3, 7, 9]
    assert moments[-1] == (9, dashboard_data.START + 9 * dashboard_data.SECONDS_PER_STEP)
    assert one.read("gpus", lambda reader, _: reader.gpus(["r"])).value["r"] >= 1


def test_b23_what_was_used_longest_ago_makes_room() -> None:
    made: list[str] = []

    def make(name: str) -> Callable[[], str]:
        return lambda: made.append(name) or name * 1_000

    kept = NewestVersions[str](100, max_bytes=2_500)
    for name in ("a", "b", "a", "c", "a", "b"):
        kept.get(name, 1, make(name))
    assert made == ["a", "b", "c", "b"]
    assert len(kept.get("larger than all", 1, lambda: "x" * 5_000)) == 5_000


def test_b23_a_reader_forgets_what_does_not_fit() -> None:
    one, made = cached_reader(Clock()), list[int]()
    rows = [Bucket(step, step, 0.1, 0.2, 0.3, 0.4, 1, None) for step in range(50_000)]
    for key in range(20):
        one.read(key, lambda reader, _: list(rows))
    one.read(19, lambda reader, _: made.append(19) or rows)
    one.read(0, lambda reader, _: made.append(0) or rows)
    assert made == [0]


def test_of_what_is_looked_at_only_the_newest_is_kept() -> None:
    made: list[str] = []

    def make(name: str) -> Callable[[], str]:
        return lambda: made.append(name) or name

    latest = NewestVersions[str](2)
    assert [latest.get("a", 1, make("a1")), latest.get("a", 1, make("again")), latest.get("a", 2, make("a2"))] == [
        "a1",
        "a1",
        "a2",
    ]
    latest.get("b", 1, make("b1"))
    latest.get("a", 2, make("still there"))
    latest.get("c", 1, make("c1"))
    assert latest.get("b", 1, make("b1, once more")) == "b1, once more", "the one not asked for longest has gone"
    assert made == ["a1", "a2", "b1", "c1", "b1, once more"]
