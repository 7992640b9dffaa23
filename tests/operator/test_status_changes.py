"""What is recorded of a run in the metadata store, and what its rows show."""

from planner_bench import Bench, raw_job

from dapo_core.run.entries import AttemptEnded, AttemptStarted, RunChanged
from dapo_operator.jobs.status_changes import changes


def kinds(bench: Bench, old: object = None) -> list[str]:
    return [type(each).__name__ for each in changes(bench.job, old, bench.status, bench.events, bench.now)]  # type: ignore[arg-type]


def test_a_new_run() -> None:
    bench = Bench().settle()
    assert kinds(bench) == ["RunCreated", "AttemptStarted", "RunChanged", "EventOccurred"]


def test_nothing_new_is_nothing_to_record() -> None:
    bench = Bench().training()
    bench.events.clear()
    assert kinds(bench, bench.status) == []


def test_an_operator_that_starts_records_all_it_finds() -> None:
    bench = Bench(raw_job(runPolicy={"backoffSeconds": 1})).training().finish("first-head-1-0", 30).settle()
    bench.settle(5)
    bench.events.clear()
    found = changes(bench.job, None, bench.status, (), bench.now)
    assert next(each for each in found if isinstance(each, AttemptEnded)).counted is True
    assert sum(isinstance(each, AttemptStarted) for each in found) == 2


def test_the_end_of_a_run() -> None:
    bench = Bench().training().finish("first-head-1-0", 0).finish("first-trainer-1-0", 0)
    before = bench.status
    bench.settle()
    states = [each for each in changes(bench.job, before, bench.status, (), bench.now) if isinstance(each, RunChanged)]
    assert [(each.state, each.reason) for each in states] == [("Succeeded", "Completed")]
    assert states[0].ended_at is not None


def test_a_spec_that_was_never_used_makes_no_run() -> None:
    bench = Bench(raw_job(topology={"head": {"podTemplate": {"spec": {"hostname": "x"}}}})).settle()
    assert kinds(bench) == []
