"""What is kept of old runs, and that thinning changes no picture."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from metadata_databases import reader, writer

from dapo_core.db import AlertRow, EventRow, MetadataReader, MetadataWriter, Point, RunRow, WriteBatch, prune
from dapo_core.db.prune import DAY, EndedRun, Keep, apply, choose, plan

__all__ = ["reader", "writer"]

NOW = 1000 * DAY
OLD, MIDDLE, NEW = (
    EndedRun(name, "default", NOW - days * DAY, 1600, False) for name, days in {"o": 90, "m": 40, "n": 2}.items()
)
CHOICES: dict[str, tuple[Keep, str, str]] = {
    "nothing is asked": (Keep(), "", ""),
    "old ones are thinned": (Keep(whole_days=30), "om", ""),
    "older ones removed": (Keep(whole_days=30, thinned_days=60), "m", "o"),
    "too many points: the oldest goes": (Keep(most_points=3200), "", "o"),
    "only as many as must go": (Keep(most_points=1601), "", "om"),
    "thinning may be enough": (Keep(whole_days=30, most_points=3000), "om", ""),
    "and if not, what was thinned goes as well": (Keep(whole_days=30, most_points=1700), "m", "o"),
}


@pytest.mark.parametrize(("keep", "thin", "remove"), CHOICES.values(), ids=CHOICES.keys())
def test_runs_chosen_to_thin_and_to_remove(keep: Keep, thin: str, remove: str) -> None:
    found = choose([NEW, OLD, MIDDLE], keep, NOW, 4800, 100.0)
    assert ["".join(run.run_id for run in each) for each in (found.thin, found.remove)] == [thin, remove]


def test_a_thinned_run_is_not_thinned_again() -> None:
    assert choose([replace(OLD, is_thinned=True)], Keep(whole_days=30), NOW, 100, 1.0).thin == []


def ended(writer: MetadataWriter, run_id: str, days: float) -> None:
    writer.create_run(RunRow(run_id, "job", created_at=1.0))
    writer.update_run_state(run_id, "Succeeded", ended_at=NOW - days * DAY)
    first = [Point.of("m", step, 1, 1.0, (step * 7) % 101) for step in range(1000)]
    again = [Point.of("m", step, 2, 2.0, (step * 5) % 103) for step in range(500, 700)]
    writer.write(run_id, WriteBatch(points=[*first, *again]))
    writer.write_events(run_id, [EventRow(run_id, "e", 1.0, "Normal", "R", "m")])
    writer.raise_alert(AlertRow(run_id, "NonFinite", 1.0, 1.0, "m", "Warn"))


def test_thinning_keeps_the_buckets(metadata_url: str, writer: MetadataWriter, reader: MetadataReader) -> None:
    ended(writer, "r", 40)
    ended(writer, "other", 1)
    before = {most: reader.buckets(["r"], ["m"], buckets=most) for most in (3, 20, 60)}
    chosen = plan(metadata_url, Keep(whole_days=30), NOW)
    assert [run.run_id for run in chosen.thin] == ["r"] and chosen.points_gone == 1125
    assert plan(metadata_url, Keep(whole_days=30, most_points=10**9), NOW).points == 2400
    apply(metadata_url, chosen)
    assert {most: reader.buckets(["r"], ["m"], buckets=most) for most in before} == before
    curve = reader.curve("r", "m")
    assert len(curve) == 62 + 8 and {point.attempt for point in curve if 500 <= point.step < 700} == {2}
    assert len(reader.buckets(["r"], ["m"], buckets=10_000)["r", "m"]) == 63
    assert len(reader.curve("other", "m")) == 1000
    assert plan(metadata_url, Keep(whole_days=30), NOW).thin == []


def test_a_removed_run_leaves_nothing(metadata_url: str, writer: MetadataWriter, reader: MetadataReader) -> None:
    ended(writer, "r", 40)
    ended(writer, "other", 1)
    apply(metadata_url, plan(metadata_url, Keep(thinned_days=30), NOW))
    assert [run.run_id for run in reader.runs()] == ["other"]
    assert reader.curve("r", "m") == [] and reader.events("r") == [] and reader.alerts(["r"]) == []
    assert reader.buckets(["r"], ["m"], buckets=3) == {} and reader.attempts("r") == []
    assert len(reader.curve("other", "m")) == 1000


def test_a_thinned_run_that_is_resumed_keeps_what_its_buckets_held(
    metadata_url: str, writer: MetadataWriter, reader: MetadataReader
) -> None:
    """B7: the buckets were made again of the one point in 16 that was left, and of the new ones."""
    writer.create_run(RunRow("r", "job", created_at=1.0))
    writer.update_run_state("r", "Succeeded", ended_at=NOW - 40 * DAY)
    values = {step: 1000.0 if step == 33 else float(step) for step in range(64)}
    writer.write("r", WriteBatch([Point.of("m", step, 1, 1.0, value) for step, value in values.items()]))
    apply(metadata_url, plan(metadata_url, Keep(whole_days=30), NOW))
    for step in range(37, 64):
        writer.write("r", WriteBatch([Point.of("m", step, 2, 2.0, step / 2)]))
    (_, _, resumed, after) = reader.buckets(["r"], ["m"], buckets=4)["r", "m"]
    assert (resumed.step_from, resumed.step_to, resumed.count) == (32, 47, 16)
    assert (resumed.min, resumed.max, resumed.last) == (37 / 2, 1000.0, 47 / 2)
    # Trained again as a whole: nothing of the first attempt is left.
    assert (after.min, after.max, after.count) == (48 / 2, 63 / 2, 16)


@pytest.mark.parametrize("keep", [Keep(whole_days=30), Keep(thinned_days=30)], ids=["thin", "remove"])
def test_what_was_interrupted_is_done_by_the_next_one(
    keep: Keep, metadata_url: str, writer: MetadataWriter, reader: MetadataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B16: each metric of a run is a transaction."""
    ended(writer, "r", 40)
    more = [Point.of(name, step, 1, 1.0, step) for name in ("n", "o") for step in range(100)]
    writer.write("r", WriteBatch(points=more))
    left = iter([True])
    monkeypatch.setattr(prune, "_has_ended", lambda _connection, _run_id: next(left))
    with pytest.raises(StopIteration):
        apply(metadata_url, plan(metadata_url, keep, NOW))
    monkeypatch.undo()
    again = plan(metadata_url, keep, NOW)
    assert [run.run_id for run in (*again.thin, *again.remove)] == ["r"]
    apply(metadata_url, again)
    points = sum(len(reader.curve("r", name)) for name in "mno")
    assert points == (62 + 8 + 2 * (6 + 4) if keep.whole_days else 0)
    assert [run.run_id for run in reader.runs()] == (["r"] if keep.whole_days else [])
    done = plan(metadata_url, keep, NOW)
    assert done.thin == [] and done.remove == []


def test_a_suspended_run_is_not_changed(metadata_url: str, writer: MetadataWriter, reader: MetadataReader) -> None:
    ended(writer, "r", 400)
    chosen = plan(metadata_url, Keep(thinned_days=30), NOW)
    writer.update_run_state("r", "Suspended", ended_at=NOW - 400 * DAY)
    for keep in (Keep(whole_days=30), Keep(thinned_days=30), Keep(most_points=1)):
        found = plan(metadata_url, keep, NOW)
        assert found.thin == [] and found.remove == []
    apply(metadata_url, chosen)  # suspended between the plan and its work
    assert len(reader.curve("r", "m")) == 1000


LIMITS: dict[str, Mapping[str, str]] = {"run": {"run_id": "r"}, "namespace": {"namespace": "nowhere"}}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
def test_a_run_that_was_resumed_is_not_changed(
    limit: Mapping[str, str], metadata_url: str, writer: MetadataWriter, reader: MetadataReader
) -> None:
    ended(writer, "r", 40)
    chosen = plan(metadata_url, Keep(thinned_days=30), NOW)
    writer.update_run_state("r", "Running")
    assert plan(metadata_url, Keep(thinned_days=30, **limit), NOW).remove == []  # type: ignore[arg-type]
    apply(metadata_url, chosen)  # resumed between the plan and its work
    assert len(reader.curve("r", "m")) == 1000
