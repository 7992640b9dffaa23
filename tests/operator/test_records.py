"""What is recorded of a run in the metadata store, and what its rows show."""

from planner_bench import Bench, raw_job

from dapo_core.db import CurvePoint, RunProgress
from dapo_core.run.metrics import ENTROPY, REWARD_GENERATED, STEP_SECONDS
from dapo_operator.jobs.progress import progress_of
from dapo_operator.jobs.records import AttemptEnded, AttemptStarted, RunState, changes
from dapo_operator.jobs.words import eta_text


def kinds(bench: Bench, old: object = None) -> list[str]:
    return [type(each).__name__ for each in changes(bench.job, old, bench.status, bench.events, bench.now)]  # type: ignore[arg-type]


def test_a_new_run() -> None:
    bench = Bench().settle()
    assert kinds(bench) == ["RunCreated", "AttemptStarted", "RunState", "EventTold"]


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
    states = [each for each in changes(bench.job, before, bench.status, (), bench.now) if isinstance(each, RunState)]
    assert [(each.state, each.reason) for each in states] == [("Succeeded", "Completed")]
    assert states[0].ended_at is not None


def test_a_spec_that_was_never_used_makes_no_run() -> None:
    bench = Bench(raw_job(topology={"head": {"podTemplate": {"spec": {"hostname": "x"}}}})).settle()
    assert kinds(bench) == []


def test_progress_of_rows() -> None:
    spec = Bench(raw_job(schedule={"steps": 100})).job.spec
    point = CurvePoint(step=9, attempt=1, ts=0.0, value=0.123456, flag=None)
    history = {STEP_SECONDS: [(step, 60.0, None) for step in range(5, 10)]}
    run = RunProgress("r", 1, 9, 0.0, {ENTROPY: point, REWARD_GENERATED: point}, None, history)
    progress = progress_of(run, spec)
    assert (progress.step, progress.total_steps, progress.entropy) == (9, 100, 0.1235)
    assert (progress.seconds_per_step, progress.eta_seconds, progress.eta) == (60.0, 5460, "1h31m")


def test_an_attempt_without_a_step_is_where_the_last_one_was() -> None:
    point = CurvePoint(step=9, attempt=1, ts=0.0, value=0.5, flag=None)
    run = RunProgress("r", 2, None, None, {ENTROPY: point}, None, {})
    assert progress_of(run, Bench().job.spec).step == 9


def test_times_left() -> None:
    shown = {40: "40s", 720: "12m", 7980: "2h13m", 7200: "2h", 187_200: "2d4h"}
    assert {seconds: eta_text(seconds) for seconds in shown} == shown
