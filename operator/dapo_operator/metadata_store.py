"""The operator's access to the metadata store: what is new in all runs, and what the operator records about them. An
outage of the store delays both and stops nothing."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar
from zlib import crc32

from dapo_core.backoff import Backoff
from dapo_core.errors import StoreError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.effective_time import effective_time
from dapo_core.run.entries import AlertCleared, AlertRaised, AttemptStarted, Entry
from dapo_core.run.guards import Alert, metrics_of
from dapo_core.run.metrics import ENGINES_WAITED, STEP_SECONDS
from dapo_core.run.progress import LAST_METRICS, PACE_METRICS, PACE_STEPS, Cadence, progress_of
from dapo_core.run.status import CheckpointRef, Progress, TimeSpent
from dapo_operator.jobs.observed import StoreState
from dapo_operator.kube.objects import timestamp
from dapo_operator.run_reading import JudgedCurves, next_parts, read_curves

if TYPE_CHECKING:
    from dapo_core.db import CurvePart, MetadataReader, RunMark, RunProgress
    from dapo_core.db.recorder import Recorder

logger = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS: Final = 5.0
# A read is followed by a pause of so many times as long: many runs are read together, less often.
POLL_PAUSE, POLL_MAX_SECONDS = 50, 15.0
PROBE_SECONDS: Final = 15.0
BACKOFF: Final = Backoff(2 * POLL_SECONDS, 60.0)
GATHER_SECONDS: Final = 1.0
FIRST_READ_SECONDS: Final = 5.0
TIME_SECONDS: Final = 300.0
WRITE_RETRY_SECONDS: Final = 5.0
# Beyond this many the oldest are dropped: statuses contain the same, and are recorded again when the operator restarts.
MAX_RECORDS: Final = 50_000
BATCH: Final = 200
# Runs whose progress is read in one query.
RUNS_PER_QUERY: Final = 200


@dataclass(frozen=True)
class RunSnapshot:
    """What a run reports, as the planner and its status need it. `alerts` are None until its guards were judged;
    `lost`: the store lacks what was recorded before. `known`: it was read, or there is no store; `namespace` is None
    for a run that is not on record."""

    progress: Progress | None = None
    checkpoint: CheckpointRef | None = None
    alerts: tuple[Alert, ...] | None = None
    attempt: int = 0
    reached: int | None = None
    lost: bool = False
    known: bool = False
    namespace: str | None = None
    time: TimeSpent | None = None

    def only_advances(self, before: "RunSnapshot") -> bool:
        """Whether nothing differs but the numbers of a run that has finished a step before."""
        if before.progress is None or before.progress.step is None:
            return False
        return replace(self, progress=before.progress, reached=before.reached, time=before.time) == before


@dataclass
class _Watched:
    spec: DAPOJobSpec
    changed: Callable[[], None]
    view: RunSnapshot = field(default_factory=RunSnapshot)
    # As of the last complete read; None: read it again.
    mark: "RunMark | None" = None
    curves: JudgedCurves | None = None
    recorded: int = 0
    time: "_TimeRead | None" = None


@dataclass(frozen=True)
class _Reading:
    """What was read of a run that has changed."""

    mark: "RunMark"
    row: "RunProgress"
    curves: JudgedCurves
    time: "_TimeRead"


@dataclass(frozen=True)
class _TimeRead:
    """What a run's time was spent on, as of its newest attempt and of its end, read `at` (Unix seconds)."""

    spent: TimeSpent | None
    attempt: int
    ended_at: float | None
    at: float

    def holds(self, mark: "RunMark", now: float) -> bool:
        """Whether it need not be read again yet."""
        return (self.attempt, self.ended_at) == (mark.attempt, mark.ended_at) and 0 <= now - self.at < TIME_SECONDS


class MetadataStore:
    """Reads and writes in threads; everything else happens on the event loop."""

    def __init__(self, url: str | None, now: Callable[[], float]) -> None:
        self._url, self._now = url, now
        self._runs: dict[str, _Watched] = {}
        self._recorder = None if url is None else _recorder(url)
        self._entries_added = asyncio.Event()
        self._run_added = asyncio.Event()
        self.state: StoreState = "none" if url is None else "down"
        # When it became readable and writable after an outage; 0 when it never failed. Senders have to catch up before
        # silence means a stall.
        self.since = 0.0
        # When it began to fail; 0 when it never did.
        self.failed_at = 0.0
        self._failed = False
        self._asked = url is None
        self._opened = now()
        self._unwritable: StoreError | None = None
        self._unreadable: set[str] = set()  # runs whose rows cannot be understood

    @property
    def watched(self) -> int:
        """How many runs are read."""
        return len(self._runs)

    def ready(self) -> bool:
        """Whether the first read has succeeded or failed, or has taken too long. Until then nothing is known, not even
        that there is no checkpoint."""
        return self._asked or self._now() - self._opened > FIRST_READ_SECONDS

    def watch(self, run_id: str, spec: DAPOJobSpec, changed: Callable[[], None]) -> None:
        """Read this run from now on, and call `changed` whenever its view changes."""
        known = self._runs.get(run_id)
        if known is None:
            self._runs[run_id] = _Watched(spec, changed, RunSnapshot(known=self._url is None))
            self._run_added.set()
        elif known.spec.guards != spec.guards or known.spec.schedule != spec.schedule:
            # Other guards find other things in the same curves.
            known.spec, known.mark = spec, None
            self._run_added.set()

    def forget(self, run_id: str) -> None:
        """Stop reading this run."""
        self._runs.pop(run_id, None)
        self._unreadable.discard(run_id)

    def view(self, run_id: str) -> RunSnapshot:
        """What the run reported last."""
        known = self._runs.get(run_id)
        return known.view if known else RunSnapshot(known=self._url is None)

    def record(self, run_id: str, entries: Sequence[Entry]) -> None:
        """Write these soon, in this order."""
        if self._recorder is None or not entries:
            return
        self._recorder.add(run_id, *entries)
        self._entries_added.set()
        if (known := self._runs.get(run_id)) is not None:
            attempts = (entry.number for entry in entries if isinstance(entry, AttemptStarted))
            known.recorded = max(known.recorded, *attempts, 0)

    async def run(self) -> None:
        """Read and write until cancelled."""
        if self._url is None or self._recorder is None:
            return
        from dapo_core.db import open_reader

        await asyncio.gather(
            self._read_loop(open_reader(self._url)), self._write_loop(self._recorder), self._probe_loop(self._recorder)
        )

    async def _read_loop(self, reader: "MetadataReader") -> None:
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            begun, pause = clock(), POLL_SECONDS
            try:
                await self._read(reader)
                failures, pause = 0, min(max(POLL_SECONDS, POLL_PAUSE * (clock() - begun)), POLL_MAX_SECONDS)
            except StoreError as error:
                logger.warning("Could not read the metadata store: %s", error)
                self._set_state("down")
                failures += 1
            await self._sleep(BACKOFF.delay(failures) if failures else pause)

    async def _sleep(self, seconds: float) -> None:
        """Until the next read; runs that are added meanwhile are read after GATHER_SECONDS."""
        await asyncio.sleep(GATHER_SECONDS)
        if self.state != "down":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._run_added.wait()
        else:
            await asyncio.sleep(seconds)
        self._run_added.clear()

    async def _read(self, reader: "MetadataReader") -> None:
        runs = dict(self._runs)
        # A database that was restored from an older copy, or recreated, lacks what was written before.
        behind = self._recorder is None or self._recorder.waiting
        written = {} if behind else {run_id: run.recorded for run_id, run in runs.items()}
        marks = await asyncio.to_thread(self._marks, reader, runs)
        lost = {run_id for run_id, mark in marks.items() if mark.attempt < written.get(run_id, 0)}
        changed = {
            run_id: (runs[run_id], mark)
            for run_id, mark in marks.items()
            if runs[run_id].mark != mark or runs[run_id].view.lost != (run_id in lost)
        }
        readings = await asyncio.to_thread(self._readings, reader, changed) if changed else {}
        self._set_state("ok" if self._unwritable is None else "readonly")
        for run_id, reading in readings.items():
            if self._runs.get(run_id) is runs[run_id]:
                try:
                    self._update(run_id, runs[run_id], reading, run_id in lost)
                except Exception as error:
                    self._note_unreadable(run_id, error)
                else:
                    self._unreadable.discard(run_id)

    def _marks(self, reader: "MetadataReader", runs: Mapping[str, _Watched]) -> "dict[str, RunMark]":
        """What tells whether a run has changed: a few rows per run."""
        metrics = {
            *LAST_METRICS,
            *PACE_METRICS,
            *(name for run in runs.values() for name in metrics_of(run.spec.guards)),
        }
        return self._of_each(list(runs), lambda run_ids: reader.marks(run_ids, sorted(metrics)))

    def _readings(
        self, reader: "MetadataReader", changed: "Mapping[str, tuple[_Watched, RunMark]]"
    ) -> dict[str, _Reading]:
        """The progress of the runs that have changed, and their curves as far as they are new."""
        names, rows, parts = list(changed), dict[str, "RunProgress"](), dict[str, "CurvePart"]()

        def progress(run_ids: Sequence[str]) -> "dict[str, RunProgress]":
            return reader.progress(run_ids, LAST_METRICS, PACE_METRICS, first_steps=0, last_steps=2 * PACE_STEPS)

        def follows(run_ids: Sequence[str]) -> "dict[str, CurvePart]":
            known = ((run_id, *changed[run_id]) for run_id in run_ids)
            return next_parts(reader, {run_id: (run.spec.guards, mark, run.curves) for run_id, run, mark in known})

        for first in range(0, len(names), RUNS_PER_QUERY):
            some = names[first : first + RUNS_PER_QUERY]
            rows |= self._of_each(some, progress)
            parts |= self._of_each(some, follows)

        def read(run_ids: Sequence[str]) -> dict[str, _Reading]:
            found = {}
            for run_id in run_ids:
                run, mark = changed[run_id]
                curves = read_curves(reader, run_id, run.spec.guards, mark, run.curves, parts.get(run_id))
                found[run_id] = _Reading(mark, rows[run_id], curves, self._time(reader, run_id, run, mark))
            return found

        return {name: reading for run_id in rows for name, reading in self._of_each([run_id], read).items()}

    def _time(self, reader: "MetadataReader", run_id: str, run: _Watched, mark: "RunMark") -> _TimeRead:
        """What the run's time was spent on. Its whole curves are read, so this is done every TIME_SECONDS only, and
        when an attempt has started or ended. Those of runs that are read for the first time are spread over this time:
        an operator that was restarted would read all of them at once, then and ever after."""
        now, share = self._now(), crc32(run_id.encode()) / 2**32
        known = run.time or _TimeRead(None, mark.attempt, mark.ended_at, now - share * TIME_SECONDS)
        if known.holds(mark, now):
            return known
        curves = [reader.curve(run_id, name) for name in (STEP_SECONDS, ENGINES_WAITED)]
        time = effective_time(reader.attempts(run_id), curves[0], now, curves[1])
        return _TimeRead(time.spent if time.held else None, mark.attempt, mark.ended_at, now)

    def _of_each(self, run_ids: list[str], read: Callable[[Sequence[str]], Mapping[str, T]]) -> dict[str, T]:
        """What `read` returns, without the runs whose rows cannot be read: a tenant writes its own rows, and they must
        not hide all others. Raises StoreError when the store itself cannot be read."""
        from dapo_core.db import RejectedError

        try:
            return dict(read(run_ids))
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, RejectedError):
                raise
            if len(run_ids) <= 1:
                for run_id in run_ids:
                    self._note_unreadable(run_id, error)
                return {}
        middle = len(run_ids) // 2
        return self._of_each(run_ids[:middle], read) | self._of_each(run_ids[middle:], read)

    def _note_unreadable(self, run_id: str, error: Exception) -> None:
        if run_id not in self._unreadable:
            self._unreadable.add(run_id)
            logger.error("The rows of run %s in the metadata store cannot be read: %r", run_id, error)

    def _update(self, run_id: str, run: _Watched, reading: _Reading, lost: bool) -> None:
        row, curves = reading.row, reading.curves
        progress = self._dated(progress_of(row, run.spec.schedule.steps, Cadence.of(run.spec)), run.view.progress)
        newest = row.checkpoint
        checkpoint = CheckpointRef(step=newest.step, uri=newest.uri) if newest is not None else None
        run.curves, run.time = curves, reading.time
        # Until all was read, what the guards said last holds; guards that were changed meanwhile are judged next time.
        judged = curves.complete and curves.guards == run.spec.guards
        run.mark = reading.mark if judged else None
        alerts = tuple(curves.judge.alerts()) if judged else run.view.alerts
        view = RunSnapshot(
            progress, checkpoint, alerts, row.attempt, row.step, lost, True, row.namespace, reading.time.spent
        )
        if view != run.view:
            self.record(run_id, _alert_changes(run.view.alerts or (), alerts or (), self._now()))
            run.view = view
            run.changed()

    def _dated(self, progress: Progress, before: Progress | None) -> Progress:
        """With the time when its step was seen finished."""
        same = before is not None and before.step == progress.step
        step_at = before.step_at if same and before is not None else timestamp(self._now())
        return progress.model_copy(update={"step_at": step_at if progress.step is not None else None})

    def _set_state(self, state: StoreState) -> None:
        if not self._asked or state != self.state:
            self.since = self._now() if self._failed and state == "ok" else self.since
            if state != "ok" and self.state == "ok":
                self.failed_at = self._now()
            self._failed = self._failed or state != "ok"
            self.state, self._asked = state, True
            for run in list(self._runs.values()):
                run.changed()

    async def _probe_loop(self, recorder: "Recorder") -> None:
        """Whether trainers can write: the disk may be full, the server read-only, or a table locked. Runs that cannot
        report their steps have not stalled."""
        while True:
            error = await asyncio.to_thread(recorder.probe)
            if error is not None and self._unwritable is None:
                logger.warning("The metadata store cannot be written: %s", error)
            self._unwritable = error
            if self.state in ("ok", "readonly"):
                self._set_state("ok" if error is None else "readonly")
            await asyncio.sleep(PROBE_SECONDS)

    async def _write_loop(self, recorder: "Recorder") -> None:
        while True:
            await self._entries_added.wait()
            self._entries_added.clear()
            while recorder.waiting:
                error = await asyncio.to_thread(recorder.flush, BATCH)
                if error is not None:
                    logger.warning("Cannot write to the metadata store: %s", error)
                    await asyncio.sleep(WRITE_RETRY_SECONDS)


def _recorder(url: str) -> "Recorder":
    # SQLAlchemy and its drivers take memory that an installation without a store need not spend.
    from dapo_core.db import open_writer
    from dapo_core.db.recorder import Recorder

    return Recorder(open_writer(url), MAX_RECORDS)


def _alert_changes(old: Sequence[Alert], new: Sequence[Alert], now: float) -> list[Entry]:
    before, after = ({alert.rule: alert for alert in alerts} for alerts in (old, new))
    raised: list[Entry] = [AlertRaised(alert.rule, now, alert.since, alert.message, alert.action) for alert in new]
    return [*raised, *(AlertCleared(rule, now) for rule in before if rule not in after)]
