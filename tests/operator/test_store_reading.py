"""What the operator reads of runs: only what is new, and guards judged on whole curves."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import builders
import pytest
from metadata_databases import reader, writer
from virtual_time import now, run_virtual

from dapo_core.db import AttemptRow, MetadataReader, MetadataWriter, Point, RunMark, WriteBatch
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run import metrics
from dapo_operator import metadata_store, run_reading
from dapo_operator.metadata_store import MetadataStore, RunSnapshot

__all__ = ["reader", "writer"]

RUN = "r"
ENTROPY, REWARD = metrics.ENTROPY, metrics.REWARD_GENERATED


def spec(*guards: dict[str, Any]) -> DAPOJobSpec:
    return builders.job(guards=list(guards), schedule={"steps": 1000}).spec


COLLAPSE = {"rule": "EntropyCollapse", "threshold": 0.1, "forSteps": 150, "action": "Warn"}
FALL = {"rule": "RewardCollapse", "threshold": 0.5, "forSteps": 3, "action": "Warn"}


class Watching:
    """The operator's view of one run; `points` counts the points that it has read."""

    def __init__(self, url: str, reader: MetadataReader, monkeypatch: pytest.MonkeyPatch, of: DAPOJobSpec) -> None:
        self.store, self.reader = MetadataStore(url, lambda: 0.0), reader
        self.points = self.progress = 0
        curve_part, progress = reader.curve_part, reader.progress

        def counted(*arguments: Any) -> Any:
            part = curve_part(*arguments)
            self.points += sum(map(len, part.history.values()))
            return part

        def counted_progress(run_ids: Sequence[str], *arguments: Any, **options: Any) -> Any:
            self.progress += len(run_ids)
            return progress(run_ids, *arguments, **options)

        monkeypatch.setattr(reader, "curve_part", counted)
        monkeypatch.setattr(reader, "progress", counted_progress)
        self.store.watch(RUN, of, lambda: None)

    def read(self) -> RunSnapshot:
        asyncio.run(self.store._read(self.reader))
        return self.store.view(RUN)


def holding(view: RunSnapshot) -> list[tuple[str, int]]:
    assert view.alerts is not None
    return [(alert.rule, alert.since) for alert in view.alerts]


def report(writer: MetadataWriter, attempt: int, steps: range, resumed: int = 0, **values: float) -> None:
    names = {"entropy": ENTROPY, "reward": REWARD}
    writer.start_attempt(AttemptRow(RUN, attempt, 1.0, step_from=resumed))
    points = [
        Point.of(names[name], step, attempt, 1e4 * attempt + step, v) for step in steps for name, v in values.items()
    ]
    writer.write(RUN, WriteBatch(points))


@pytest.fixture
def watching(
    metadata_url: str, reader: MetadataReader, monkeypatch: pytest.MonkeyPatch, writer: MetadataWriter
) -> Watching:
    return Watching(metadata_url, reader, monkeypatch, spec(COLLAPSE, FALL))


def test_b06_only_what_is_new_is_read(watching: Watching, writer: MetadataWriter) -> None:
    report(writer, 1, range(1, 301), entropy=0.5, reward=0.8)
    watching.read()
    assert (watching.points, watching.progress) == (600, 1)
    for _ in range(3):
        watching.read()
    assert (watching.points, watching.progress) == (600, 1), "nothing is new"
    report(writer, 1, range(301, 302), entropy=0.5, reward=0.8)
    view = watching.read()
    assert (watching.points, watching.progress) == (604, 2), "the newest step again, and the new one"
    assert view.progress is not None and view.progress.step == 301


def test_b07_a_guard_of_more_steps_than_a_page_shows_holds(watching: Watching, writer: MetadataWriter) -> None:
    report(writer, 1, range(1, 201), entropy=0.5, reward=0.8)
    report(writer, 1, range(201, 350), entropy=0.05, reward=0.8)
    assert holding(watching.read()) == []
    report(writer, 1, range(350, 351), entropy=0.05, reward=0.8)
    assert holding(watching.read()) == [("EntropyCollapse", 201)]


def test_b07_a_reward_that_stays_down_is_not_forgotten(watching: Watching, writer: MetadataWriter) -> None:
    report(writer, 1, range(1, 301), reward=0.9)
    for begin in range(301, 701, 50):
        report(writer, 1, range(begin, begin + 50), reward=0.1)
        assert holding(watching.read()) == [("RewardCollapse", 301)]


def test_b07_a_new_attempt_takes_the_place_of_the_steps_it_repeats(watching: Watching, writer: MetadataWriter) -> None:
    report(writer, 1, range(1, 101), reward=0.9)
    report(writer, 1, range(101, 121), reward=0.1)
    assert holding(watching.read()) == [("RewardCollapse", 101)]
    report(writer, 2, range(0), resumed=100)
    assert holding(watching.read()) == [], "the steps after its checkpoint are discarded"
    report(writer, 2, range(101, 103), reward=0.1)
    assert holding(watching.read()) == []
    report(writer, 2, range(103, 104), reward=0.1)
    assert holding(watching.read()) == [("RewardCollapse", 101)]


def test_b07_changed_guards_judge_from_the_first_step(watching: Watching, writer: MetadataWriter) -> None:
    report(writer, 1, range(1, 201), entropy=0.05)
    assert holding(watching.read()) == [("EntropyCollapse", 1)]
    watching.store.watch(RUN, spec(COLLAPSE | {"threshold": 0.01}), lambda: None)
    assert holding(watching.read()) == []


def test_b06_a_long_curve_is_read_in_parts(
    watching: Watching, writer: MetadataWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reading, "PAGE", 50)
    monkeypatch.setattr(run_reading, "PAGES", 2)
    report(writer, 1, range(1, 201), entropy=0.05)
    views = [watching.read() for _ in range(3)]
    assert [view.alerts is None for view in views] == [True, True, False]
    assert holding(views[-1]) == [("EntropyCollapse", 1)]
    before = watching.points
    watching.read()
    assert watching.points == before


def test_b06_more_points_of_one_step_than_a_page_has_do_not_stop_the_reading(
    watching: Watching, writer: MetadataWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reading, "PAGE", 1)
    report(writer, 1, range(1, 3), entropy=0.05, reward=0.5)
    assert watching.read().alerts == ()


@pytest.mark.parametrize(
    ("mark", "continues"),
    [
        (RunMark(1, 0, 60), True),
        (RunMark(2, 0, 60), False),
        (RunMark(1, 20, 60), False),
        (RunMark(1, 0, 40), False),
        (RunMark(1, 0, None), False),
    ],
    ids=["more steps", "another attempt", "another checkpoint", "restored", "restored to the start"],
)
def test_b06_what_can_be_continued(mark: RunMark, continues: bool) -> None:
    guards = spec(FALL).guards
    known = run_reading.JudgedCurves(guards, 1, 0)
    known.judge.add({REWARD: [(step, 0.5, None) for step in range(1, 51)]})
    assert known.is_continued_by(guards, mark) is continues


def test_what_the_time_was_spent_on_is_read_at_a_slow_cadence_and_at_the_end(
    watching: Watching, writer: MetadataWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(watching.store, "_now", lambda: now)
    assert watching.read().time is None, "no attempt has started"
    writer.start_attempt(AttemptRow(RUN, 1, 1000.0))

    def step(number: int, ended: float) -> RunSnapshot:
        points = [Point.of(metrics.STEP_SECONDS, number, 1, ended, 100.0), Point.of(ENTROPY, number, 1, ended, 0.5)]
        writer.write(RUN, WriteBatch([*points, Point.of(metrics.ENGINES_WAITED, number, 1, ended, 40.0)]))
        return watching.read()

    now = 1200.0
    first = step(1, 1200.0).time
    assert first is not None
    assert (first.held_seconds, first.useful_seconds, first.ettr) == (200, 60, 0.3)
    assert first.lost_seconds == {"Starting": 100, "NoRollouts": 40}
    now = 1300.0
    assert step(2, 1300.0).time == first, "its curves are not read at each step"
    now = 1600.0
    later = step(3, 1600.0).time
    assert later is not None and (later.held_seconds, later.useful_seconds) == (600, 180)
    now = 1650.0
    writer.end_attempt(RUN, 1, reason="Completed", ended_at=1640.0)
    last = watching.read().time
    assert last is not None and (last.held_seconds, last.lost_seconds["Completed"]) == (640, 40)


def test_the_times_of_many_runs_are_not_all_read_at_once(
    watching: Watching, writer: MetadataWriter, reader: MetadataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the operator."""
    now, reads = 1000.0, list[str]()
    monkeypatch.setattr(watching.store, "_now", lambda: now)
    curve = reader.curve
    monkeypatch.setattr(reader, "curve", lambda run_id, *rest: reads.append(run_id) or curve(run_id, *rest))
    runs = [f"run-{number}" for number in range(20)]
    for run in runs:
        writer.start_attempt(AttemptRow(run, 1, 900.0))
        watching.store.watch(run, spec(), lambda: None)
    watching.read()
    assert reads == []
    for later in (75, 150, 225, 300):
        now = 1000.0 + later
        before = len(set(reads))
        for run in runs:
            writer.write(run, WriteBatch([Point.of(metrics.STEP_SECONDS, later, 1, now, 1.0)]))
        watching.read()
        assert 0 < len(set(reads)) - before < len(runs), "some of them"
    assert set(reads) == set(runs)


def test_what_is_new_in_many_runs_is_read_at_once(
    watching: Watching, writer: MetadataWriter, reader: MetadataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [f"run-{number}" for number in range(20)]

    def report_all(steps: range, entropy: float) -> None:
        for run in runs:
            writer.write(run, WriteBatch([Point.of(ENTROPY, step, 1, 1e4 + step, entropy) for step in steps]))

    for run in runs:
        writer.start_attempt(AttemptRow(run, 1, 900.0, step_from=0))
        watching.store.watch(run, spec(COLLAPSE | {"forSteps": 2}), lambda: None)
    report_all(range(1, 11), 0.5)
    watching.read()
    watching.points = 0
    report_all(range(11, 13), 0.05)
    watching.read()
    assert watching.points == 0, "none by itself"
    assert [holding(watching.store.view(run)) for run in runs] == [[("EntropyCollapse", 11)]] * len(runs)
    monkeypatch.setattr(run_reading, "PAGE", 15)
    report_all(range(13, 14), 0.5)
    watching.read()
    assert watching.points == 2 * len(runs), "one by one, if there is more than a page"
    assert {run.curves.judge.newest for run in watching.store._runs.values() if run.curves} == {13, None}


# The newest attempt, the step it resumed from, and what is read from step 8 on. Attempt 1 has the steps up to 12.
FOLLOWS: dict[str, tuple[int, int | None, list[int] | None]] = {
    "the first attempt": (1, 0, [8, 9, 10, 11, 12]),
    "one that has not said where it began": (1, None, [8, 9, 10, 11, 12]),
    "a resumed one, with what it keeps": (2, 10, [8, 9, 10, 11]),
    "a resumed one that has not said from where": (2, None, None),
}


@pytest.mark.parametrize(("attempt", "resumed", "steps"), FOLLOWS.values(), ids=FOLLOWS.keys())
def test_curves_of_many_runs_go_on_as_those_of_one(
    writer: MetadataWriter, reader: MetadataReader, attempt: int, resumed: int | None, steps: list[int] | None
) -> None:
    report(writer, 1, range(1, 13), entropy=0.5)
    if attempt > 1:
        report(writer, attempt, range(11, 12), entropy=0.25)
    mark = RunMark(attempt, resumed)
    found = reader.next_parts({RUN: (mark, 8)}, [ENTROPY], 100)
    if steps is None:
        assert found == {}
    else:
        assert found == {RUN: reader.curve_part(RUN, [ENTROPY], mark, 8, 100)}
        assert [step for step, *_ in found[RUN].history[ENTROPY]] == steps


@pytest.mark.parametrize(("took", "pause"), [(0.0, 5.0), (0.2, 10.0), (3.0, 15.0)], ids=["short", "long", "very long"])
def test_reads_that_take_long_are_fewer(took: float, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[float]()

    async def read(*_: object) -> None:
        begun.append(now())
        await asyncio.sleep(took)

    async def scenario() -> None:
        store = MetadataStore("sqlite://", lambda: 0.0)
        store.state = "ok"
        monkeypatch.setattr(store, "_read", read)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await store._read_loop(None)  # type: ignore[arg-type]

    run_virtual(scenario())
    assert begun[1] - begun[0] == pytest.approx(took + pause + metadata_store.GATHER_SECONDS)
