"""A user's reward function in real processes: whatever it does costs one response, and nothing stays behind."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from patience import patient

from dapo_trainer.rewards.custom import Detail
from dapo_trainer.rewards.verdict import ResponseGroup, Verdict
from dapo_trainer.rewards.verifier import FunctionReference, Verifier, usable_processors

FAKES = Path(__file__).parent / "fakes"
T = TypeVar("T")


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    before = children()
    yield
    assert children() <= before


def with_verifier(
    function: str,
    work: Callable[[Verifier], Awaitable[T]],
    timeout: float = 20.0,
    processes: int = 1,
    start: float = 60.0,
    per_group: bool = False,
) -> T:
    async def run() -> T:
        reference = FunctionReference(function if ":" in function else f"reward_functions:{function}", per_group)
        verifier = Verifier(reference, timeout, processes, start)
        try:
            return await work(verifier)
        finally:
            await verifier.close()

    return asyncio.run(run())


async def checked(verifier: Verifier, response: str, prompt: str = "", truth: str = "") -> Verdict:
    [verdict] = await verifier.check(ResponseGroup(prompt, [response], truth))
    return verdict


def verdicts(function: str, responses: list[str], timeout: float = 20.0, start: float = 60.0) -> list[Verdict]:
    async def work(verifier: Verifier) -> list[Verdict]:
        return [await checked(verifier, response, "p:", "yes") for response in responses]

    return with_verifier(function, work, timeout, start=start)


DETAILS: dict[str, Detail] = {
    "note": "short",
    "steps": 3,
    "share": 0.5,
    "boxed": True,
    "parts": "[1, 2]",
    "long": "x" * 300,
}


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        pytest.param("right_when_equal", Verdict(1.0, True), id="a number"),
        pytest.param("details", Verdict(0.25, True, "p:yes", details=DETAILS), id="a mapping"),
        pytest.param("flag", Verdict(1.0, True), id="true"),
        pytest.param("chatty", Verdict(0.0, False), id="prints and reads"),
    ],
)
def test_what_a_function_may_return(function: str, verdict: Verdict) -> None:
    assert verdicts(function, ["yes", "yes"]) == [verdict] * 2


def of_group(function: str, responses: list[str], per_group: bool = True, **more: Any) -> list[Verdict]:
    async def work(verifier: Verifier) -> list[Verdict]:
        return list(await verifier.check(ResponseGroup("p:", responses, "yes", **more)))

    return with_verifier(function, work, per_group=per_group)


@pytest.mark.parametrize(
    ("function", "extra_info", "verdict"),
    [
        pytest.param("by_level", {"level": 3}, Verdict(3.0, True), id="a field of it"),
        pytest.param("by_level", {}, Verdict(-1.0, False), id="empty"),
        pytest.param("right_when_equal", {"level": 3}, Verdict(1.0, True), id="a function that does not take it"),
        pytest.param(
            "with_keywords", {}, Verdict(1.0, True, details={"given": "extra_info,prompt"}), id="a function of keywords"
        ),
        pytest.param("waits", {}, Verdict(1.0, True), id="async"),
        pytest.param("raises_later", {}, Verdict(-1.0, False, None, "ValueError: later"), id="async, and raises"),
    ],
)
def test_s1_what_a_function_is_given(function: str, extra_info: dict[str, Any], verdict: Verdict) -> None:
    assert of_group(function, ["yes", "yes"], per_group=False, extra_info=extra_info) == [verdict] * 2


@pytest.mark.parametrize(
    ("function", "scores"),
    [
        pytest.param("ranks", [0.0, 1 / 3, 2 / 3], id="from the whole group"),
        pytest.param("ranks_later", [0.0, 1.0, 2.0], id="async"),
    ],
)
def test_s1_a_group_is_scored_in_one_call(function: str, scores: list[float]) -> None:
    assert [verdict.score for verdict in of_group(function, ["a", "bb", "ccc"])] == scores


def test_one_score_of_a_group_may_fail_alone() -> None:
    fine, nan, mapping, text = of_group("one_bad", ["a", "b", "c", "d"])
    assert (fine, mapping) == (Verdict(1.0, True), Verdict(0.5, True))
    assert nan.failure == "the score is nan" and text.failure is not None and "could not convert" in text.failure


def test_a_group_gets_a_score_for_each_response() -> None:
    failures = [verdict.failure for verdict in of_group("one_short", ["a", "b"])]
    assert failures == ["ValueError: 1 scores for 2 responses"] * 2


def test_a_hang_costs_its_group() -> None:
    async def work(verifier: Verifier) -> list[Verdict]:
        return list(await verifier.check(ResponseGroup("", ["a", "b"], "")))

    hung = with_verifier("waits_forever", work, timeout=0.5, per_group=True)
    assert [verdict.failure for verdict in hung] == ["no verdict within 0.5 s"] * 2


def test_a_function_of_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "math.py").write_text(
        "from neighbour import bonus\n\ndef score(response, truth, *, prompt):\n    return bonus\n"
    )
    (tmp_path / "neighbour.py").write_text("import math\n\nbonus = math.floor(2.5)\n")
    assert verdicts(f"{tmp_path}/math.py:score", ["x"]) == [Verdict(2.0, True)], "and hides no module of its name"


def test_a_running_process_is_used_before_another_is_started() -> None:
    async def work(verifier: Verifier) -> int:
        for _ in range(3):
            await checked(verifier, "yes")
        return len(children())

    before = len(children())
    assert with_verifier("right_when_equal", work, processes=8) == before + 1


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        pytest.param({}, 64, id="no limit known"),
        pytest.param({"cpu.max": "max 100000\n"}, 64, id="no limit"),
        pytest.param({"cpu.max": "250000 100000\n"}, 3, id="two and a half"),
        pytest.param({"cpu.max": "10000 100000\n"}, 1, id="a tenth"),
        pytest.param({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4, id="version 1"),
        pytest.param({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64, id="version 1, no limit"),
        pytest.param({"cpu.max": "gibberish"}, 64, id="not understood"),
    ],
)
def test_s1_workers_are_as_many_as_the_container_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], wanted: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert usable_processors(tmp_path) == wanted


@pytest.mark.parametrize(
    ("function", "failure"),
    [
        pytest.param("raises", "ValueError: no such\nproblem", id="raises"),
        pytest.param("not_a_number", "the score is nan", id="NaN"),
        pytest.param("infinite", "the score is -inf", id="infinite"),
        pytest.param(
            "nothing", "TypeError: float() argument must be a string or a real number, not 'NoneType'", id="None"
        ),
        pytest.param("no_score", "KeyError: 'score'", id="mapping without a score"),
        pytest.param("exits", "SystemExit: 3", id="sys.exit"),
    ],
)
def test_a_failed_check_says_why_and_leaves_the_process(function: str, failure: str) -> None:
    first, second = verdicts(function, ["yes", "yes"])
    assert first == second == Verdict(-1.0, False, None, failure)


def test_a_long_answer_is_cut() -> None:
    [verdict] = verdicts("says_a_lot", ["yes"])
    assert verdict.failure is None and verdict.predicted == "x" * 300


def test_a_hang_costs_one_response() -> None:
    begun = time.monotonic()
    hung, fine = verdicts("hangs", ["hang", "yes"], timeout=0.5)
    assert hung.failure == "no verdict within 0.5 s" and fine == Verdict(1.0, True)
    assert time.monotonic() - begun < patient(20)


def test_a_death_costs_one_response() -> None:
    first, died, after = verdicts("dies", ["yes", "die", "yes"])
    assert died.failure == "the reward process died (exit code 7)"
    assert first == after == Verdict(1.0, True)


def test_a_death_between_two_checks_costs_none() -> None:
    async def work(verifier: Verifier) -> list[Verdict]:
        first = await checked(verifier, "die")
        await asyncio.sleep(0.5)
        return [first, await checked(verifier, "yes")]

    assert with_verifier("dies_afterwards", work) == [Verdict(1.0, True)] * 2


def test_a_memory_bomb_costs_one_response() -> None:
    first, bombed, after = verdicts("bomb", ["yes", "bomb", "yes"])
    assert bombed.failure == "MemoryError: over the memory limit of the reward process"
    assert first == after == Verdict(1.0, True), "the hoard must not be the next response's burden"


@pytest.mark.parametrize(
    ("function", "failure"),
    [
        pytest.param("reward_broken:one", "reward_broken:one cannot be imported", id="raises"),
        pytest.param("no_such_module:one", "no_such_module:one cannot be imported", id="no such module"),
        pytest.param("reward_functions:missing", "reward_functions:missing cannot be imported", id="no such function"),
        pytest.param("reward_functions:number", "reward_functions:number cannot be imported", id="no function"),
        pytest.param("reward_functions:narrow", "reward_functions:narrow cannot be imported", id="other parameters"),
        pytest.param("reward_exiting:one", "reward_exiting:one cannot be imported", id="exits"),
    ],
)
def test_a_module_that_cannot_be_imported(function: str, failure: str) -> None:
    for verdict in verdicts(function, ["yes", "yes"]):
        assert verdict.failure is not None and verdict.failure.startswith(failure)


def test_start_up_does_not_count_against_the_response() -> None:
    assert verdicts("reward_slow:one", ["yes"], timeout=0.5) == [Verdict(1.0, True)]


def test_a_start_that_hangs_is_given_up() -> None:
    first, second = verdicts("reward_slow:one", ["yes", "yes"], start=0.3)
    assert first.failure == second.failure == "reward_slow:one was not imported within 0.3 s"


def test_checks_run_side_by_side_and_wait_their_turn() -> None:
    async def work(verifier: Verifier) -> list[Verdict]:
        hung = ["hang" if i < 2 else "yes" for i in range(12)]
        return list(await asyncio.gather(*(checked(verifier, response) for response in hung)))

    found = with_verifier("hangs", work, timeout=0.5, processes=2)
    assert [v.failure is None for v in found] == [False] * 2 + [True] * 10


def test_close_ends_a_check_in_the_middle() -> None:
    async def work(verifier: Verifier) -> None:
        await checked(verifier, "yes")
        check = asyncio.create_task(checked(verifier, "hang"))
        await asyncio.sleep(1.0)
        await verifier.close()
        assert (await asyncio.wait_for(check, patient(30))).failure is not None

    with_verifier("hangs", work, timeout=60)


def test_a_cancelled_check_is_not_read_as_the_next_ones_verdict() -> None:
    async def work(verifier: Verifier) -> Verdict:
        assert (await checked(verifier, "yes")).correct
        check = asyncio.create_task(checked(verifier, "hang"))
        await asyncio.sleep(0.2)
        check.cancel()
        await asyncio.wait([check])
        return await checked(verifier, "yes", truth="yes")

    assert with_verifier("hangs", work, timeout=60) == Verdict(1.0, True)


def test_what_the_function_started_ends_with_it(tmp_path: Path) -> None:
    async def work(verifier: Verifier) -> Verdict:
        return await checked(verifier, "hang", truth=str(tmp_path / "pid"))

    assert with_verifier("hangs_with_a_child", work, timeout=1.0).failure == "no verdict within 1 s"
    child = Path("/proc") / (tmp_path / "pid").read_text()
    deadline = time.monotonic() + patient(10)
    while child.exists() and "\nState:\tZ" not in (child / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "\nState:\tZ" in (child / "status").read_text()
