"""`dapo chaos`: the plan is printed or carried out, what is in effect is ended, and the report says what happened."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from dapo_core.cli import chaos
from dapo_core.cli.chaos import NoTargetError, Storm
from dapo_core.cli.chaos_report import ChaosReport, RunAccount, report_json
from dapo_core.cli.main import app
from dapo_core.errors import StoreError
from dapo_core.run.effective_time import EffectiveTime
from dapo_core.run.fault_outcomes import FaultOutcome, GroupAccount, InjectedFault, Sight, StepLengths
from dapo_core.run.fault_plan import FaultKind, PlannedFault

RUNNER = CliRunner()
KILL = PlannedFault(0.0, FaultKind.KILL, "rollout", 0.5)
DRAIN = PlannedFault(0.0, FaultKind.DRAIN, "trainer", 0.5)
LATE = PlannedFault(900.0, FaultKind.KILL, "rollout", 0.5)


@dataclass
class FakeTarget:
    """A job with rollouts and no trainer, of which every second sight fails."""

    name: str = "team/first"
    looks: int = 0
    hits: list[PlannedFault] = field(default_factory=list)
    restored: int = 0

    async def look(self) -> Sight:
        self.looks += 1
        if self.looks % 2 == 0:
            raise StoreError("The API server did not respond.")
        return Sight(0.0, 1, self.looks, "Training", True)

    async def inject(self, fault: PlannedFault) -> str:
        if fault.role == "trainer":
            raise NoTargetError("no trainer runs")
        self.hits.append(fault)
        return "first-rollout-1-0"

    async def restore(self) -> None:
        self.restored += 1

    async def close(self) -> None:
        pass


def test_a_dry_run_prints_the_plan_and_needs_no_job() -> None:
    printed = RUNNER.invoke(app, ["chaos", "no-such-job", "--minutes", "30", "--seed", "3", "--dry-run"])
    assert printed.exit_code == 0
    assert len(printed.stdout.splitlines()) == 1 + 10
    again = RUNNER.invoke(app, ["chaos", "other", "--minutes", "30", "--seed", "3", "--dry-run"])
    assert again.stdout == printed.stdout


def test_faults_are_injected_at_their_time_and_what_is_in_effect_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "LOOK_SECONDS", 0.0)
    target = FakeTarget()
    storm = Storm(target, [KILL, DRAIN, LATE])
    asyncio.run(storm.pass_over(0.2))
    assert target.hits == [KILL] and target.restored == 1
    assert [(each.planned, each.target, each.why) for each in storm.faults] == [
        (KILL, "first-rollout-1-0", ""),
        (DRAIN, "", "no trainer runs"),
    ]
    assert storm.sights and all(sight.attempt == 1 for sight in storm.sights)


def test_an_interrupted_storm_ends_what_is_in_effect_and_reports() -> None:
    target = FakeTarget()

    async def interrupted() -> Storm:
        storm = Storm(target, [KILL, LATE])
        task = asyncio.create_task(storm.pass_over(3600))
        while not target.hits:
            await asyncio.sleep(0)
        task.cancel()
        await task
        return storm

    assert len(asyncio.run(interrupted()).faults) == 1
    assert target.restored == 1


ACCOUNT = RunAccount(
    EffectiveTime(600, 420, {"NoRollouts": 60.0, "BetweenSteps": 5.0}),
    GroupAccount(9, 80, 72, 0, 0, 1),
    StepLengths(10.0, 5, 14.0, 3, 1.4),
)
OUTCOMES = [
    FaultOutcome(InjectedFault(KILL, 12.4, "first-rollout-1-0"), 1, 1, 41.0, 7.0, False),
    FaultOutcome(InjectedFault(DRAIN, 99.0, "", "no trainer runs"), 1, 2, None, None, True),
]
SIGHTS = [Sight(0, 1, 5, "Training", True), Sight(600, 2, 14, "Training", True)]


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from dapo_core.cli.chaos_report import printed_report

    report = ChaosReport("team/first", 7, 600, OUTCOMES, SIGHTS, ACCOUNT)
    Console(width=160, color_system=None).print(printed_report(report))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1].split() == ["12", "s", "kill", "first-rollout-1-0", "1", "41", "s", "7", "s"]
    assert lines[2].split() == ["99", "s", "drain", *"nothing: no trainer runs".split(), *"1 to 2 not again -".split()]
    assert lines[4:] == [
        "team/first, seed 7: 1 fault in 10m, 1 attempt ended, steps 5 to 14.",
        "Groups of 9 steps: 80 generated, 72 trained on, 0 lost, 0 unaccounted for (1 step without an account).",
        "A step takes 10.0 s (median of 5), and 14.0 s while pods or engines are missing (of 3): 1.40 times as long as "
        "others within 20 steps.",
        "Held 10m, useful 7m00s (86.6%), lost: 1m00s NoRollouts, 5s BetweenSteps.",
    ]
    found = json.loads(json.dumps(report_json(report)))
    assert (found["attemptsEnded"], found["steps"], found["groups"]["lost"]) == (1, [5, 14], 0)
    assert found["time"] == {"held": 600, "useful": 420, "lost": {"NoRollouts": 60.0, "BetweenSteps": 5.0}}


def test_a_report_without_a_store_says_what_names_it() -> None:
    from dapo_core.cli.chaos_report import printed_report

    report = ChaosReport("team/first", 7, 600, [], [], None)
    assert report.steps == (0, 0) and report.attempts_ended == 0
    assert "--metadata" in str(printed_report(report).renderables[-1])  # type: ignore[union-attr]
