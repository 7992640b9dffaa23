"""What `dapo chaos` prints: a plan, and the report of what each of its faults did to the job."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.run.effective_time import EffectiveTime
from dapo_core.run.fault_outcomes import NEAR_STEPS, FaultOutcome, GroupAccount, Sight, StepLengths
from dapo_core.run.fault_plan import EFFECTS, PlannedFault
from dapo_core.run.formatting import duration, percent, plural

_CAUSES: Final = 6


@dataclass(frozen=True)
class RunAccount:
    """What the metadata store has of the time of the faults."""

    time: EffectiveTime
    groups: GroupAccount
    lengths: StepLengths


@dataclass(frozen=True)
class ChaosReport:
    """`seconds` is how long the job was to be watched; `account` is None without a metadata store."""

    job: str
    seed: int
    seconds: float
    outcomes: Sequence[FaultOutcome]
    sights: Sequence[Sight]
    account: RunAccount | None

    @property
    def attempts_ended(self) -> int:
        """How many attempts ended meanwhile, for whatever reason."""
        numbers = [sight.attempt for sight in self.sights]
        return max(numbers) - min(numbers) if numbers else 0

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the highest step that were seen."""
        steps = [sight.step for sight in self.sights if sight.step is not None]
        return (steps[0], max(steps)) if steps else (0, 0)


def plan_table(plan: Sequence[PlannedFault]) -> Table:
    """One row for each fault, by time."""
    table = _table("At", "Fault", "Role", "What happens", right=("At",))
    for fault in plan:
        effect = EFFECTS[fault.kind]
        lasts = f", for {effect.seconds:g} s" if effect.seconds else ""
        table.add_row(_seconds(fault.at), fault.kind, fault.role or "all", effect.meaning + lasts)
    return table


def printed_report(report: ChaosReport) -> RenderableType:
    """The table of the faults, and below it what they cost in all."""
    table = _table("At", "Fault", "Hit", "Attempt", "Whole", "Next step", right=("At", "Whole", "Next step"))
    for outcome in report.outcomes:
        fault = outcome.fault
        attempt = str(outcome.attempt_before)
        if outcome.attempt_after != outcome.attempt_before:
            attempt += f" to {outcome.attempt_after}"
        whole = "not again" if outcome.lacking else _seconds(outcome.whole_after)
        hit = fault.target or f"nothing: {fault.why}"
        table.add_row(_seconds(fault.at), fault.planned.kind, hit, attempt, whole, _seconds(outcome.step_after))
    return Group(table, Text(""), *map(Text, _sums(report)))


def _sums(report: ChaosReport) -> list[str]:
    hits = sum(bool(outcome.fault.target) for outcome in report.outcomes)
    first, last = report.steps
    seen = report.sights[-1].at if report.sights else 0.0
    lines = [
        f"{report.job}, seed {report.seed}: {plural(hits, 'fault')} in {duration(seen)}, "
        f"{plural(report.attempts_ended, 'attempt')} ended, steps {first} to {last}."
    ]
    if report.account is None:
        return [*lines, "Groups and lost time are in the metadata store; --metadata or DAPO_METADATA_URL names it."]
    groups, time = report.account.groups, report.account.time
    lines.append(
        f"Groups of {plural(groups.steps, 'step')}: {groups.generated} generated, {groups.trained} trained on, "
        f"{groups.lost} lost, {groups.unaccounted} unaccounted for"
        + (f" ({plural(groups.unknown, 'step')} without an account)." if groups.unknown else ".")
    )
    if (lengths := _lengths(report.account.lengths)) is not None:
        lines.append(lengths)
    causes = sorted(time.lost.items(), key=lambda each: -each[1])[:_CAUSES]
    lost = ", ".join(f"{duration(seconds)} {cause}" for cause, seconds in causes) or "nothing"
    lines.append(f"Held {duration(time.held)}, useful {duration(time.useful)} ({percent(time.ratio)}), lost: {lost}.")
    return lines


def _lengths(found: StepLengths) -> str | None:
    if found.complete is None or found.reduced is None:
        return None
    times = "" if found.times is None else f": {found.times:.2f} times as long as others within {NEAR_STEPS} steps"
    return (
        f"A step takes {found.complete:.1f} s (median of {found.complete_steps}), and {found.reduced:.1f} s while pods "
        f"or engines are missing (of {found.reduced_steps}){times}."
    )


def report_json(report: ChaosReport) -> dict[str, Any]:
    """The same as JSON, with every sight of the job."""
    account = report.account
    return {
        "job": report.job,
        "seed": report.seed,
        "attemptsEnded": report.attempts_ended,
        "steps": list(report.steps),
        "faults": [asdict(outcome) for outcome in report.outcomes],
        "sights": [asdict(sight) for sight in report.sights],
        "groups": None if account is None else asdict(account.groups),
        "stepSeconds": None if account is None else asdict(account.lengths),
        "time": None
        if account is None
        else {"held": account.time.held, "useful": account.time.useful, "lost": dict(account.time.lost)},
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def _table(*headings: str, right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table
