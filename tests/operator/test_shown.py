"""The line of `kubectl get dj`, in each situation; and what is not worth a write of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from planner_bench import SITE, START, Bench, raw_job
from situations import SITUATIONS, Situation, table, unschedulable

from dapo_core.run.status import DAPOJobStatus, Progress
from dapo_operator.job_state import StatusWrites, counted_conditions

DELAY_SECONDS = SITE.status_delay_seconds
PAGE = Path(__file__).parents[2] / "docs/kubectl.md"


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS.keys())
def test_the_line_says_why(situation: Situation) -> None:
    status = situation.make().status
    assert (status.phase, status.reason, status.pods, status.restarts) == situation.line
    assert status.gpus is None or status.gpus == 1


def test_the_page_of_the_docs_shows_these_lines() -> None:
    """To change the page, copy what is missing from the failure."""
    text = PAGE.read_text()
    for shown in (f"$ kubectl get dj\n{table()}\n", f"$ kubectl get dj -o wide\n{table(wide=True)}\n"):
        assert shown in text, f"docs/kubectl.md lacks:\n{shown}"
    rows = [f"| `{name}` | {each.words} |" for name, each in SITUATIONS.items()]
    assert [row for row in rows if row not in text] == []


def stored(bench: Bench, state: str, **fields: float) -> Bench:
    bench.seen = replace(bench.seen, store=state, **fields)  # type: ignore[arg-type]
    return bench


def test_b22_a_short_outage_of_the_store_costs_no_write() -> None:
    bench = stored(Bench(), "ok").training()
    writes = bench.writes
    for state in ("down", "readonly"):
        stored(bench, state, store_failed_at=bench.now).settle(DELAY_SECONDS - 1)
        stored(bench, "ok").settle(1)
    assert bench.writes == writes


def test_b22_an_outage_that_lasts_is_told() -> None:
    bench = stored(Bench(), "ok").training()
    stored(bench, "down", store_failed_at=bench.now)
    assert bench.look().wake_at == bench.now + DELAY_SECONDS
    bench.settle(DELAY_SECONDS)
    assert bench.says("ProgressKnown") == ("False", "MetadataUnreachable")


def test_b22_a_job_that_starts_during_an_outage_says_so_at_once() -> None:
    bench = stored(Bench(), "down", store_failed_at=START).settle()
    assert bench.says("ProgressKnown") == ("False", "MetadataUnreachable")


def numbered(status: DAPOJobStatus, count: int) -> DAPOJobStatus:
    """The status with another number in the scheduler's sentence."""
    conditions = [
        each.model_copy(update={"message": f"0/{count} nodes are available."}) if each.type == "PodsReady" else each
        for each in status.conditions
    ]
    return status.model_copy(update={"conditions": conditions})


def test_b23_another_number_in_the_schedulers_sentence_waits() -> None:
    status, writes, written = unschedulable().status, StatusWrites(DELAY_SECONDS), 0
    writes.wrote(START)
    old = numbered(status, 0)
    for second in range(1, 121):
        new = numbered(status, second)
        if writes.due(old, new, START + second):
            writes.wrote(START + second)
            old, written = new, written + 1
    assert written == 120 / DELAY_SECONDS
    assert writes.due(old, status.model_copy(update={"phase": "Training"}), START + 121), "anything else does not"


@pytest.mark.parametrize(
    ("runs", "seconds"),
    [(1, 30), (100, 30), (200, 60), (1000, 300), (5000, 300)],
    ids=["1 run", "100 runs", "200 runs", "1,000 runs", "5,000 runs"],
)
def test_the_progress_of_many_runs_is_written_less_often(runs: int, seconds: int) -> None:
    writes = StatusWrites(DELAY_SECONDS, runs=runs)
    old, new = (DAPOJobStatus(progress=Progress(step=step)) for step in (1, 2))
    writes.wrote(START)
    assert (writes.progress_in(START), writes.progress_in(START + seconds)) == (seconds, 0)
    assert not writes.due(old, new, START + seconds - 1) and writes.due(old, new, START + seconds)
    assert writes.due(old, new.model_copy(update={"phase": "Training"}), START + 1), "anything else does not wait"


def test_wide_columns() -> None:
    gang = {"gang": {"scheduler": "kueue", "queue": "team"}}
    status = Bench(raw_job(runPolicy=gang, topology={"trainer": {"gpusPerPod": 8, "replicas": 2}})).settle().status
    assert (status.gpus, status.attempt) == (16, 1)


def _in_queue(admitted: bool) -> Bench:
    bench = Bench(raw_job(runPolicy={"gang": {"scheduler": "kueue", "queue": "team"}})).settle().settle(7200)
    return bench.admit("first-1").settle() if admitted else bench


WAITS: dict[str, tuple[Callable[[], Bench], float, list[str]]] = {
    "no room": (unschedulable, 3601, ["Waiting"]),
    "no room for a while": (unschedulable, 3599, []),
    "attempts that do not start": (lambda: unschedulable().settle(1900).settle(700), 1001, ["Waiting"]),
    "in Kueue's queue": (lambda: _in_queue(admitted=False), 7200, []),
    "admitted a moment ago": (lambda: _in_queue(admitted=True), 60, ["QuotaReserved"]),
    "suspended": (lambda: Bench(raw_job(suspend=True)).settle(), 7200, ["Suspended"]),
    "resumed a moment ago": (
        lambda: Bench(raw_job(suspend=True)).settle().settle(7200).edit(suspend=False).settle(),
        60,
        [],
    ),
    "trains": (lambda: Bench().training(), 7200, ["PodsReady", "Training"]),
    "failed": (lambda: Bench().training().finish("first-head-1-0", 11).settle(), 3600, ["Failed", "FailedRecently"]),
    "failed long ago": (lambda: Bench().training().finish("first-head-1-0", 11).settle(), 3602, ["Failed"]),
}


@pytest.mark.parametrize(("situation", "seconds", "counted"), WAITS.values(), ids=WAITS.keys())
def test_d17_jobs_that_need_attention_are_counted(
    situation: Callable[[], Bench], seconds: float, counted: list[str]
) -> None:
    bench = situation()
    found = counted_conditions(bench.status, bench.now + seconds)
    assert sorted(set(found) - {"SpecAccepted", "ProgressKnown"}) == sorted(counted)
