"""The operator's end of the metadata store: what runs report, in one read for all of them, and what the operator
records of them. A store that is down delays both and stops nothing."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dapo_core.errors import StoreError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.backoff import Backoff
from dapo_core.run.entries import AlertCleared, AlertRaised, AttemptStarted, Entry
from dapo_core.run.guards import Alert, evaluate, metrics_of
from dapo_core.run.progress import LAST_METRICS, PACE_METRICS, Cadence, progress_of
from dapo_core.run.status import CheckpointRef, Progress
from dapo_operator.jobs.observed import StoreState

if TYPE_CHECKING:
    from dapo_core.db import MetadataReader, RunProgress
    from dapo_core.run.recorder import Recorder

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
BACKOFF: Final = Backoff(2 * POLL_SECONDS, 60.0)
GATHER_SECONDS: Final = 1.0
FIRST_ANSWER_SECONDS: Final = 5.0
WRITE_RETRY_SECONDS: Final = 5.0
# Beyond this many the oldest are dropped: statuses hold the same, and are recorded again at the next start.
MAX_RECORDS: Final = 50_000
BATCH: Final = 200


@dataclass(frozen=True)
class RunView:
    """What a run reports, as its status and the planner want it. `lost`: what was recorded of it is not there."""

    progress: Progress | None = None
    checkpoint: CheckpointRef | None = None
    alerts: tuple[Alert, ...] = ()
    attempt: int = 0
    reached: int | None = None
    lost: bool = False


@dataclass
class _Watched:
    spec: DAPOJobSpec
    changed: Callable[[], None]
    view: RunView = field(default_factory=RunView)
    judged: bool = False
    recorded: int = 0


class Store:
    """Reads and writes in threads of their own; everything else of it is of the event loop."""

    def __init__(self, url: str | None, now: Callable[[], float]) -> None:
        self._url, self._now = url, now
        self._runs: dict[str, _Watched] = {}
        self._recorder = None if url is None else _recorder(url)
        self._news = asyncio.Event()
        self._poke = asyncio.Event()
        self.state: StoreState = "none" if url is None else "down"
        # Since when it can be read; 0 when it never failed. A sender has to catch up before silence means a stall.
        self.since = 0.0
        self._failed = False
        self._asked = url is None
        self._opened = now()

    def ready(self) -> bool:
        """Whether the first answer is there, good or bad, or was waited for long enough: until then nothing is known,
        not even that there is no checkpoint."""
        return self._asked or self._now() - self._opened > FIRST_ANSWER_SECONDS

    def watch(self, run_id: str, spec: DAPOJobSpec, changed: Callable[[], None]) -> None:
        """Read this run from now on, and call `changed` when it has moved."""
        known = self._runs.get(run_id)
        if known is None:
            self._runs[run_id] = _Watched(spec, changed)
            self._poke.set()
        elif known.spec.guards != spec.guards or known.spec.schedule != spec.schedule:
            # Other guards see other things in the same curves.
            known.spec, known.judged = spec, False
            self._poke.set()

    def forget(self, run_id: str) -> None:
        """Read it no more."""
        self._runs.pop(run_id, None)

    def view(self, run_id: str) -> RunView:
        """What the run reported last."""
        known = self._runs.get(run_id)
        return known.view if known else RunView()

    def record(self, run_id: str, entries: Sequence[Entry]) -> None:
        """Write these soon, in this order."""
        if self._recorder is None or not entries:
            return
        self._recorder.add(run_id, *entries)
        self._news.set()
        if (known := self._runs.get(run_id)) is not None:
            attempts = (entry.number for entry in entries if isinstance(entry, AttemptStarted))
            known.recorded = max(known.recorded, *attempts, 0)

    async def run(self) -> None:
        """Read and write until cancelled."""
        if self._url is None or self._recorder is None:
            return
        from dapo_core.db import open_reader

        await asyncio.gather(self._read_for_ever(open_reader(self._url)), self._write_for_ever(self._recorder))

    async def _read_for_ever(self, reader: "MetadataReader") -> None:
        failures = 0
        while True:
            try:
                await self._read(reader)
                failures = 0
            except StoreError as error:
                logger.warning("The metadata store can not be read: %s", error)
                self._turn("down")
                failures += 1
            await self._rest(BACKOFF.delay(failures) if failures else POLL_SECONDS)

    async def _rest(self, seconds: float) -> None:
        """Until the next read; a new run, or many at once, has not to wait for as long."""
        await asyncio.sleep(GATHER_SECONDS)
        if self.state == "ok":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._poke.wait()
        else:
            await asyncio.sleep(seconds)
        self._poke.clear()

    async def _read(self, reader: "MetadataReader") -> None:
        runs = dict(self._runs)
        # A database that was restored from an older copy, or recreated, lacks what was written before.
        behind = self._recorder is None or self._recorder.waiting
        written = {} if behind else {run_id: run.recorded for run_id, run in runs.items()}
        curves = set(PACE_METRICS) | {metric for run in runs.values() for metric in metrics_of(run.spec.guards)}
        found = await asyncio.to_thread(reader.progress, list(runs), LAST_METRICS, sorted(curves))
        self._turn("ok")
        for run_id, run in runs.items():
            if run_id in found and self._runs.get(run_id) is run:
                self._take(run_id, run, found[run_id], found[run_id].attempt < written.get(run_id, 0))

    def _take(self, run_id: str, run: _Watched, found: "RunProgress", lost: bool) -> None:
        progress = progress_of(found, run.spec.schedule.steps, Cadence.of(run.spec))
        newest = found.checkpoint
        checkpoint = CheckpointRef(step=newest.step, uri=newest.uri) if newest is not None else None
        moved = progress != run.view.progress or not run.judged
        alerts = tuple(evaluate(run.spec.guards, found.history)) if moved else run.view.alerts
        run.judged = True
        view = RunView(progress, checkpoint, alerts, found.attempt, found.step, lost)
        if view != run.view:
            self.record(run_id, _alert_changes(run.view.alerts, alerts, self._now()))
            run.view = view
            run.changed()

    def _turn(self, state: StoreState) -> None:
        if not self._asked or state != self.state:
            self.since = self._now() if self._failed and state == "ok" else self.since
            self._failed = self._failed or state == "down"
            self.state, self._asked = state, True
            for run in list(self._runs.values()):
                run.changed()

    async def _write_for_ever(self, recorder: "Recorder") -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while recorder.waiting:
                error = await asyncio.to_thread(recorder.flush, BATCH)
                if error is not None:
                    logger.warning("Cannot write to the metadata store: %s", error)
                    await asyncio.sleep(WRITE_RETRY_SECONDS)


def _recorder(url: str) -> "Recorder":
    # SQLAlchemy and its drivers take memory that an installation without a store need not spend.
    from dapo_core.db import open_writer
    from dapo_core.run.recorder import Recorder

    return Recorder(open_writer(url), MAX_RECORDS)


def _alert_changes(old: Sequence[Alert], new: Sequence[Alert], now: float) -> list[Entry]:
    before, after = ({alert.rule: alert for alert in alerts} for alerts in (old, new))
    raised: list[Entry] = [AlertRaised(alert.rule, now, alert.since, alert.message, alert.action) for alert in new]
    return [*raised, *(AlertCleared(rule, now) for rule in before if rule not in after)]
