"""One attempt: started, watched until its last process is gone, and ended early where it must be."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dapo_core.jobspec import RunPolicy
from dapo_core.run import last_words
from dapo_core.run.deadlines import Deadline, Milestones, overdue
from dapo_core.run.formatting import plural, sentence
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.local.board import Board
from dapo_trainer.local.endings import why
from dapo_trainer.local.ports import Alarm, Ended, Feed, Guard, Step
from dapo_trainer.local.view_model import Note
from dapo_trainer.process.heartbeat import read_heartbeat
from dapo_trainer.process.run_folder import AttemptFolder, shown_path
from dapo_trainer.process.signals import StopRequest
from dapo_trainer.process.stacks import dump_stacks
from dapo_trainer.process.trainer_process import TrainerProcess
from dapo_trainer.process.tree import ProcessTree

TICK_SECONDS = 0.1
# Ray's daemons end by themselves a moment after their driver; past that they are killed.
PARTING_SECONDS = 3.0
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Cause:
    """Why an attempt was asked to stop, for the supervisor to decide by. A trainer that ends itself has none."""

    kind: Literal["user", "guard", "overdue"]
    reason: str
    message: str
    exit_code: int | None = None


@dataclass
class Attempt:
    """One life of the trainer. `watch` returns when all its processes are gone."""

    folder: AttemptFolder
    process: TrainerProcess
    tree: ProcessTree
    policy: RunPolicy
    feed: Feed
    guard: Guard
    board: Board
    stop: StopRequest
    run_started: float
    tell: Callable[[Note], None]
    cause: Cause | None = None
    from_step: int | None = None
    last_step: int | None = None
    _milestones: Milestones = field(init=False)
    _kill_at: float | None = None
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self._milestones = Milestones(time.monotonic())

    def watch(self) -> Ended:
        """Blocks until the attempt is over."""
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
        ended = (started_at, time.time(), code, reason, message, self.from_step, self.last_step)
        return Ended(self.folder.number, *ended)

    def _turn(self) -> None:
        now = time.monotonic()
        self._read()
        beat = read_heartbeat(self.folder.heartbeat)
        self.board.look(beat)
        starting = beat is None or beat.phase == "start"
        self._milestones = self._milestones.at(now, starting=starting, step=self.last_step)
        self._mind_stop(now)
        if self.cause is None or self.cause.kind == "user":
            self._mind_limits(now)
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self.tree.look()

    def _read(self) -> None:
        for news in self.feed.read():
            if isinstance(news, Note):
                self.board.note(news)
                continue
            self.from_step = news.step - 1 if self.from_step is None else self.from_step
            self.last_step = news.step
            self.board.step(news)
            self._mind_guards(news)

    def _mind_guards(self, step: Step) -> None:
        for alarm in self.guard.judge(step):
            self.tell(Note(step.at, alarm.rule, alarm.message, warning=True))
            if alarm.action != "Warn" and self.cause is None:
                self._ask(_guard_cause(alarm))

    def _mind_stop(self, now: float) -> None:
        if self.stop.asked and self.cause is None:
            self._ask(Cause("user", Reason.TERMINATED, "Stopped by the user."))
        if self.stop.insisted or (self._kill_at is not None and now >= self._kill_at):
            self._end()

    def _mind_limits(self, now: float) -> None:
        late = overdue(self.policy, self._milestones, self.run_started, now)
        if late is None or self.stop.asked:
            return
        if late.reason == Reason.DEADLINE_EXCEEDED:
            self._ask(Cause("overdue", late.reason, late.message))
        else:
            self._end_hung(late)

    def _ask(self, cause: Cause) -> None:
        """Ask the trainer to checkpoint and stop; it has the grace period for that."""
        self.cause = cause
        self._kill_at = time.monotonic() + self.policy.grace_period_seconds
        self.board.mood("stopping", f"{sentence(cause.message)} Saving a checkpoint; Ctrl-C again stops now.")
        self.process.ask_to_stop()

    def _end_hung(self, late: Deadline) -> None:
        """A hung trainer can not save anything: its stacks are kept, then it is killed."""
        self.cause = Cause("overdue", late.reason, late.message, ExitCode.KILLED)
        self.tell(Note(time.time(), late.reason, late.message, warning=True))
        read = dump_stacks(self.tree.alive(), self.folder.log)
        self.tell(
            Note(
                time.time(),
                "Stacks",
                f"Stacks of {plural(read, 'process', 'processes')} are in {shown_path(self.folder.log)}.",
            )
        )
        self._end()

    def _end(self, patience_seconds: float = 0.0) -> None:
        for row in self.tree.end(patience_seconds):
            message = f"Process {row.pid} ({row.name}) can not be ended; it is stuck in the kernel."
            self.tell(Note(time.time(), "Unkillable", message, warning=True))


def _guard_cause(alarm: Alarm) -> Cause:
    return Cause("guard", alarm.rule, f"Ended by the guard: {alarm.message}", ExitCode.GUARD)
