"""Faults of `dapo chaos` for a run of `dapo run` on this machine: its engines, ranks and driver, by their process."""

import signal
from dataclasses import dataclass
from typing import Final

import psutil

from dapo_core.cli.chaos import ChaosRequest, NoTargetError
from dapo_core.naming import Role
from dapo_core.run.fault_outcomes import Sight
from dapo_core.run.fault_plan import EFFECTS, FaultKind, PlannedFault
from dapo_core.stopped_processes import ENGINE, stop_in_background
from dapo_trainer.process.processes import send
from dapo_trainer.process.run_folder import RunFolder, find_run
from dapo_trainer.process.trainer_process import Heartbeat
from dapo_trainer.process.tree import ProcessTree

# What the title of a process of each role contains; the driver is the attempt's first process.
_TITLES: Final[dict[Role, str]] = {"rollout": ENGINE, "trainer": "ray::WorkerDict"}
_ABLE: Final = frozenset({FaultKind.KILL, FaultKind.WEDGE, FaultKind.SLOW})


async def find_local_run(request: ChaosRequest) -> "LocalTarget":
    """The run, which has to be at work. Raises NoTargetError, SpecError."""
    if others := sorted(request.kinds - _ABLE):
        raise NoTargetError(
            f"--kind is {others[0]}, which needs pods: a local run can be hit by {', '.join(sorted(_ABLE))}."
        )
    run = find_run(request.home, request.job)
    if not ProcessTree.of(run).leads():
        raise NoTargetError(f"The run {run.run_id} is not running: start it with `dapo resume {run.run_id}`.")
    return LocalTarget(run)


@dataclass
class LocalTarget:
    """A local run. `engines` is the largest number of engines that were seen at once."""

    run: RunFolder
    engines: int = 0

    @property
    def name(self) -> str:
        return self.run.run_id

    async def look(self) -> Sight:
        attempts = self.run.attempts()
        beat = Heartbeat.read(attempts[-1].heartbeat) if attempts else None
        engines = len(self._members("rollout"))
        self.engines = max(self.engines, engines)
        phase = beat.phase if beat is not None else "start"
        is_whole = phase != "start" and engines >= self.engines
        # The heartbeat has the step that is worked on.
        step = None if beat is None else max(0, beat.step - 1)
        return Sight(0.0, attempts[-1].number if attempts else 0, step, phase, is_whole, engines)

    async def inject(self, fault: PlannedFault) -> str:
        assert fault.role is not None
        members = {str(process.pid): process for process in self._members(fault.role)}
        pid = fault.choose(list(members))
        if pid is None:
            raise NoTargetError(f"no process of role {fault.role} runs")
        if fault.kind is FaultKind.KILL:
            send(members[pid], signal.SIGKILL)
        else:
            effect = EFFECTS[fault.kind]
            stop_in_background([int(pid)], effect.seconds, effect.stopped)
        return f"{fault.role} process {pid}"

    async def restore(self) -> None:
        """Stopped processes go on by themselves when their time is over."""

    async def close(self) -> None:
        """Nothing is held."""

    def _members(self, role: Role) -> list[psutil.Process]:
        tree = ProcessTree.of(self.run)
        if role == "head":
            return [leader] if (leader := tree.leader) is not None else []
        return [process for process in tree.alive() if _TITLES[role] in _command(process)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
