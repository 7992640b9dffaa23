"""`dapo chaos JOB`: hit a job with the faults of a plan, watch what it does, and report."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Protocol, cast

import typer

from dapo_core.cli.chaos_report import ChaosReport, RunAccount, plan_table, printed_report, report_json
from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption, NamespaceOption
from dapo_core.cli.main import entry_points
from dapo_core.cli.runs import UnknownRunError, find_run
from dapo_core.cli.terminal import print_all, say
from dapo_core.db import MetadataReader, RunRow, open_reader
from dapo_core.errors import DapoError, NotInstalledError, StoreError
from dapo_core.run.effective_time import EffectiveTime, effective_time
from dapo_core.run.fault_outcomes import (
    ACCOUNT_METRICS,
    InjectedFault,
    Sight,
    group_account,
    outcomes_of,
    spent_between,
    step_lengths,
)
from dapo_core.run.fault_plan import FaultKind, PlannedFault, fault_plan
from dapo_core.run.home import Home, NoRunsError, attempt_folders
from dapo_core.run.metrics import ENGINES_WAITED, STEP_SECONDS

TARGETS: Final = "dapo.chaos"
LOOK_SECONDS: Final = 1.0
_USUAL: Final = [FaultKind.KILL, FaultKind.DRAIN]


class NoTargetError(DapoError):
    """What was to be hit is not there, or may not be hit."""

    user_mistake = True


@dataclass(frozen=True)
class ChaosRequest:
    """What is to be hit: a job on the cluster, or a local run, of which `folder` is the home."""

    job: str
    namespace: str | None
    home: Home
    kinds: frozenset[FaultKind]


class FaultTarget(Protocol):
    """A job that can be hit. Nothing else is ever touched."""

    @property
    def name(self) -> str:
        """The job, as the report names it."""

    async def look(self) -> Sight:
        """What the job does now; `at` is 0. Raises DapoError."""

    async def inject(self, fault: PlannedFault) -> str:
        """Do it, and return what was hit. Raises NoTargetError when there is nothing to hit, or it was refused."""

    async def restore(self) -> None:
        """End the faults that are still in effect."""

    async def close(self) -> None:
        """Release what the target holds."""


class FindTarget(Protocol):
    """Opens the target, or raises NoTargetError with what is missing."""

    async def __call__(self, request: ChaosRequest) -> FaultTarget: ...


def chaos(
    job: Annotated[str, typer.Argument(help="Job on the cluster, or a local run (its ID or job).", metavar="JOB")],
    rate: Annotated[float, typer.Option(help="Faults an hour.")] = 20.0,
    minutes: Annotated[float, typer.Option(help="How long faults are injected.")] = 60.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same plan.")] = 0,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help="kill, drain, wedge, partition, slow, scale or store. Repeatable. Default: kill and drain.",
            show_default=False,
        ),
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", help="head, trainer or rollout. Repeatable. Default: rollout.", show_default=False),
    ] = None,
    settle: Annotated[float, typer.Option(help="Seconds to watch after the last minute.", min=0.0)] = 120.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; do nothing.")] = False,
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hit a job with faults at a given rate, and report their cost."""
    plan = fault_plan(seed, rate, minutes, kinds or _USUAL, roles or ["rollout"])
    if dry_run:
        print_all(plan_table(plan))
        return
    request = ChaosRequest(job, namespace, Home.find(home, metadata), frozenset(fault.kind for fault in plan))
    report = asyncio.run(_carry_out(request, plan, minutes * 60 + settle, seed))
    if as_json:
        typer.echo(json.dumps(report_json(report), indent=2))
    else:
        print_all(printed_report(report))


async def _carry_out(request: ChaosRequest, plan: Sequence[PlannedFault], seconds: float, seed: int) -> ChaosReport:
    record = _recorded(request)
    target = await _target(request, record is not None and bool(attempt_folders(request.home.path / record.run.run_id)))
    try:
        storm = Storm(target, plan)
        spent = record.spent() if record is not None else None
        begun = time.time()
        await storm.pass_over(seconds)
    finally:
        await target.close()
    account = None if record is None or spent is None else record.account(spent, begun, storm.sights)
    return ChaosReport(target.name, seed, seconds, outcomes_of(storm.faults, storm.sights), storm.sights, account)


@dataclass
class Storm:
    """The faults of a plan as they are injected, and what is seen of the job meanwhile."""

    target: FaultTarget
    plan: Sequence[PlannedFault]
    faults: list[InjectedFault] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)

    async def pass_over(self, seconds: float) -> None:
        """Inject the faults, each at its time, and watch the job for so long. Ends early, without an error, when it is
        interrupted; whatever is in effect then is ended."""
        loop, waiting = asyncio.get_running_loop(), list(self.plan)
        begin = loop.time()
        try:
            while (now := loop.time() - begin) < seconds:
                await self._look(now)
                while waiting and waiting[0].at <= loop.time() - begin:
                    await self._inject(waiting.pop(0), loop.time() - begin)
                await asyncio.sleep(LOOK_SECONDS)
        except asyncio.CancelledError:  # Ctrl-C: the report is about what happened until then
            typer.echo("Interrupted; ending the faults that are in effect.", err=True)
        finally:
            await self.target.restore()

    async def _look(self, now: float) -> None:
        try:
            seen = await self.target.look()
        except DapoError as error:
            say(f"{now:6.0f} s  {error}", err=True)
            return
        self.sights.append(replace(seen, at=now))

    async def _inject(self, fault: PlannedFault, now: float) -> None:
        try:
            hit, why = await self.target.inject(fault), ""
        except NoTargetError as error:
            hit, why = "", str(error)
        self.faults.append(InjectedFault(fault, now, hit, why))
        say(f"{now:6.0f} s  {fault.kind} {hit or why}", err=True)


async def _target(request: ChaosRequest, is_local: bool) -> FaultTarget:
    name = "local" if is_local and request.namespace is None else "kubernetes"
    point = entry_points(TARGETS).get(name)
    try:
        if point is None:
            raise ModuleNotFoundError(name=name)
        find = cast(FindTarget, point.load())
    except ModuleNotFoundError as error:
        extra = "cpu or gpu" if name == "local" else "operator"
        raise NotInstalledError(
            f"`dapo chaos` needs {error.name}, which is not installed: install dapo-platform with the extra {extra}."
        ) from error
    return await find(request)


@dataclass(frozen=True)
class _Recorded:
    """The run as the metadata store has it."""

    reader: MetadataReader
    run: RunRow

    def spent(self) -> EffectiveTime:
        run_id = self.run.run_id
        curves = (self.reader.curve(run_id, name) for name in (STEP_SECONDS, ENGINES_WAITED))
        return effective_time(self.reader.attempts(run_id), next(curves), time.time(), next(curves))

    def account(self, before: EffectiveTime, begun: float, sights: Sequence[Sight]) -> RunAccount | None:
        """What is on record of the time since `begun`; None when the store cannot be read any more."""
        sampling = (self.run.spec.get("spec") or {}).get("algorithm", {}).get("dynamicSampling") or {}
        try:
            curves = {name: self.reader.curve(self.run.run_id, name) for name in ACCOUNT_METRICS}
            groups = group_account(curves, begun, keeps_uniform=sampling.get("enabled") is False)
            lengths = step_lengths(self.reader.curve(self.run.run_id, STEP_SECONDS), sights, begun)
            return RunAccount(spent_between(before, self.spent()), groups, lengths)
        except StoreError as error:
            say(f"The metadata store cannot be read: {error}", err=True)
            return None


def _recorded(request: ChaosRequest) -> _Recorded | None:
    try:
        reader = open_reader(request.home.recorded_url)
        run = find_run(reader, request.job)
    except (NoRunsError, UnknownRunError):
        return None
    return None if request.namespace not in (None, run.namespace) else _Recorded(reader, run)
