"""One attempt: watched until its last process is gone, and ended early when it takes too long or is asked to."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dapo_core.db import AttemptRow
from dapo_core.jobspec import RunPolicy
from dapo_core.run import last_words
from dapo_core.run.deadlines import Deadline, Milestones, overdue
from dapo_core.run.formatting import plural, sentence
from dapo_core.run.guards import Alert
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.local.display import Presenter
from dapo_trainer.local.record import GuardWatch
from dapo_trainer.local.run_view import FinishedStep, Note, SpoolFeed
from dapo_trainer.process.processes import dump_stacks
from dapo_trainer.process.run_folder import AttemptFolder, shown_path
from dapo_trainer.process.signals import StopRequest
from dapo_trainer.process.trainer_process import Heartbeat, TrainerProcess, why
from dapo_trainer.process.tree import ProcessTree

TICK_SECONDS = 0.1
# Ray's daemons end by themselves a moment after their driver; past that they are killed.
PARTING_SECONDS = 3.0
LOOK_SECONDS = 1.0
PROBE_BYTES = 4096


@dataclass(frozen=True)
class Cause:
    """Why an attempt was asked to stop, for the supervisor to decide by. A trainer that ends itself has none."""

    kind: Literal["user", "guard", "overdue"]
    reason: str
    message: str
    exit_code: int | None = None


@dataclass
class LocalAttempt:
    """One life of the trainer. `watch` returns when all its processes are gone."""

    run_id: str
    folder: AttemptFolder
    process: TrainerProcess
    tree: ProcessTree
    policy: RunPolicy
    feed: SpoolFeed
    guards: GuardWatch
    presenter: Presenter
    stop: StopRequest
    run_started: float
    report: Callable[[Note], None]
    cause: Cause | None = None
    from_step: int | None = None
    last_step: int | None = None
    _milestones: Milestones = field(init=False)
    _kill_at: float | None = None
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self._milestones = Milestones(time.monotonic())

    def watch(self) -> AttemptRow:
        """Blocks until the attempt is over. Returns how it ended, with an exit code."""
        started_at = time.time()
        while (code := self.process.exit_code()) is None:
            self._turn()
            time.sleep(TICK_SECONDS)
        self._read()
        self._end(PARTING_SECONDS)
        reason, message = why(code, last_words.read(self.folder.last_words))
        if self.cause and self.cause.kind != "user" and code != ExitCode.DONE:
            reason, message = self.cause.reason, self.cause.message
            code = self.cause.exit_code if self.cause.exit_code is not None else code
        return AttemptRow(
            self.run_id,
            self.folder.number,
            started_at,
            time.time(),
            step_from=self.from_step,
            step_to=self.last_step,
            reason=reason,
            message=message,
            exit_code=code,
        )

    def _turn(self) -> None:
        now = time.monotonic()
        self._read()
        beat = Heartbeat.read(self.folder.heartbeat)
        self.presenter.look(beat)
        starting = beat is None or beat.phase == "start"
        self._milestones = self._milestones.at(now, starting=starting, step=self.last_step)
        self._check_stop(now)
        if self.cause is None or self.cause.kind == "user":
            self._check_limits(now)
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self.tree.look()

    def _read(self) -> None:
        for record in self.feed.read():
            if isinstance(record, Note):
                self.presenter.note(record)
                continue
            self.from_step = record.step - 1 if self.from_step is None else self.from_step
            self.last_step = record.step
            self.presenter.step(record)
            self._check_guards(record)

    def _check_guards(self, step: FinishedStep) -> None:
        for alert in self.guards.judge(step):
            self.report(Note(step.at, alert.rule, alert.message, warning=True))
            if alert.action != "Warn" and self.cause is None:
                self._ask(_guard_cause(alert))

    def _check_stop(self, now: float) -> None:
        if self.stop.asked and self.cause is None:
            self._ask(Cause("user", Reason.TERMINATED, "Stopped by the user."))
        if self.stop.insisted or (self._kill_at is not None and now >= self._kill_at):
            self._end()

    def _check_limits(self, now: float) -> None:
        late = overdue(self.policy, self._milestones, self.run_started, now)
        if late is None or self.stop.asked or not self._can_report():
            return
        if late.reason == Reason.DEADLINE_EXCEEDED:
            self._ask(Cause("overdue", late.reason, late.message))
        else:
            self._end_hung(late)

    def _can_report(self) -> bool:
        """Whether the trainer can write what it does: with a full disk, its silence says nothing."""
        probe = self.folder.path / "probe"
        try:
            probe.write_bytes(b"\0" * PROBE_BYTES)
            probe.unlink()
        except OSError:
            return False
        return True

    def _ask(self, cause: Cause) -> None:
        """Ask the trainer to checkpoint and stop; it has the grace period for that."""
        self.cause = cause
        self._kill_at = time.monotonic() + self.policy.grace_period_seconds
        self.presenter.mood(
            "stopping", f"{sentence(cause.message)} Saving a checkpoint. Press Ctrl-C again to stop immediately."
        )
        self.process.ask_to_stop()

    def _end_hung(self, late: Deadline) -> None:
        """A hung trainer cannot save anything: its stacks are logged, then it is killed."""
        self.cause = Cause("overdue", late.reason, late.message, ExitCode.KILLED)
        self.report(Note(time.time(), late.reason, late.message, warning=True))
        read = dump_stacks(self.tree.alive(), self.folder.log)
        message = f"Stacks of {plural(read, 'process', 'processes')} are in {shown_path(self.folder.log)}."
        self.report(Note(time.time(), "Stacks", message))
        self._end()

    def _end(self, patience_seconds: float = 0.0) -> None:
        for process in self.tree.end(patience_seconds):
            message = f"Process {process.pid} ({process.info['name']}) cannot be ended; it is stuck in the kernel."
            self.report(Note(time.time(), "Unkillable", message, warning=True))


def _guard_cause(alert: Alert) -> Cause:
    return Cause("guard", alert.rule, f"Ended by the guard: {alert.message}", ExitCode.GUARD)
