"""The life of one DAPOJob in the operator: look, plan, carry out, wait."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from dapo_core.run.backoff import Backoff
from dapo_core.run.status import DAPOJobStatus, Progress
from dapo_operator.executor import Executor, LeftoversError, Outcome, dumped
from dapo_operator.jobs.actions import AddFinalizer, Event, Plan, RemoveFinalizer
from dapo_operator.jobs.builders.site import Site
from dapo_operator.jobs.job import FINALIZER, Job, job_of, status_of
from dapo_operator.jobs.observed import Observed, Refusal
from dapo_operator.jobs.planner import plan as make_plan
from dapo_operator.jobs.records import changes
from dapo_operator.kube.cache import JobKey, World
from dapo_operator.kube.client import Object
from dapo_operator.kube.clock import age
from dapo_operator.kube.errors import ApiError, ConflictError, NotFoundError
from dapo_operator.store import Store
from dapo_operator.telemetry.logs import bound
from dapo_operator.telemetry.recorder import Telemetry

logger = logging.getLogger(__name__)

# Nothing is read for it, so it is only a safety net: everything that matters wakes a job by itself.
RESYNC_SECONDS: Final = 300.0
# Ten pods that change together are one look; the first news after a calm is looked at at once.
SETTLE_SECONDS: Final = 0.1
CALM_SECONDS: Final = 2.0
# How long news that say nothing but a number wait for others: a run's progress, and how many rollout pods there are.
PROGRESS_SECONDS: Final = 30.0
COUNT_SECONDS: Final = RESYNC_SECONDS
LAST_NEWS_SECONDS: Final = 600.0
# Jobs that are looked at, at once: more could not ask for anything, and each would hold the bodies of all its pods.
TURNS: Final = 32
BACKOFF: Final = Backoff(1.0, 60.0)


_ENDS: Final = ("Succeeded", "Failed")


class EventSink(Protocol):
    """Where a job's story goes."""

    def tell(self, job: Job, event: Event) -> None:
        """Post it, some time soon; never raises."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What all workers share."""

    executor: Executor
    world: World
    store: Store
    events: EventSink
    site: Site
    now: Callable[[], float]
    telemetry: Telemetry
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TURNS))


@dataclass
class Worker:
    """Works on one DAPOJob until it is gone."""

    key: JobKey
    around: Surroundings
    raw: Object
    gone: bool = False
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _job: Job | None = None
    _refusal: Refusal | None = None
    _acceptable: bool = False
    _progress: Progress | None = None
    _written_at: float = 0.0
    _held_back: float = 0.0
    _recorded: DAPOJobStatus | None = None
    _read: tuple[str, DAPOJobStatus] | None = None
    _failures: int = 0

    def update(self, raw: Object) -> None:
        """The job as the watch has it; what is older than what is known is dropped."""
        if version_of(raw) > version_of(self.raw) or raw["metadata"]["uid"] != self.raw["metadata"]["uid"]:
            self.raw = raw
            self.wake()

    def wake(self) -> None:
        """Something about the job, its children or its run has changed."""
        self.around.telemetry.news(self.key)
        self._woken.set()

    async def run(self) -> None:
        """Look, plan, carry out and wait, until the job is gone."""
        with bound(job=f"{self.key[0]}/{self.key[1]}"):
            while not self.gone:
                self._woken.clear()
                await self._wait(await self.look())

    async def look(self) -> float:
        """One turn, whatever the API server makes of it. Answers the seconds until the next."""
        async with self.around.turns:
            return await self._look()

    async def _look(self) -> float:
        try:
            with self.around.telemetry.looking(self.key, self._attempt_number()):
                wait = await self.turn()
        except (ConflictError, LeftoversError, NotFoundError):
            return await self._reread()
        except ApiError as error:
            logger.warning("%s", error.message)
            return self._backoff()
        except Exception:
            # A mistake of ours about one job must not end the work on all others.
            logger.exception("This job could not be looked at.")
            return self._backoff()
        self._failures = 0
        return wait

    def _backoff(self) -> float:
        self._failures += 1
        return BACKOFF.delay(self._failures, random.random())

    async def _wait(self, seconds: float) -> None:
        if self._failures or self.gone:
            # What woke it may be the fault's own noise.
            await asyncio.sleep(0 if self.gone else seconds)
            return
        try:
            rested = time.monotonic()
            async with asyncio.timeout(seconds):
                await self._woken.wait()
            if time.monotonic() - rested < CALM_SECONDS:
                await asyncio.sleep(SETTLE_SECONDS)
        except TimeoutError:
            return

    async def turn(self) -> float:
        """One look. Answers the seconds until the next, if nothing happens before."""
        job, status, around = self._parsed(), self._status(), self.around
        self.raw = _slim(self.raw)
        self._follow(job)
        if job.deleting_since is None and not around.store.ready():
            # From which checkpoint an attempt starts is the store's to say, if it can.
            return 1.0
        now = around.now()
        plan = make_plan(job, status, self._observe(job), now, around.site)
        await self._before(job, plan)
        await self._write(job, plan, now)
        outcome = await around.executor.act(self.key, job, plan, now, self._refusal)
        self._learn(plan, outcome)
        await self._after(job, plan)
        return self._pause(plan, outcome, now)

    async def _before(self, job: Job, plan: Plan) -> None:
        old, new = self._written().attempts, plan.status.attempts
        if old and new and new[-1].number > old[-1].number:
            await self.around.executor.confirm_alone(self.key)
        if any(isinstance(action, AddFinalizer) for action in plan.actions):
            self.raw = await self.around.executor.hold(job)

    async def _write(self, job: Job, plan: Plan, now: float) -> None:
        """Write the status if it says anything new; progress and counts alone may wait for their turn."""
        old, new = self._written(), plan.status
        self._progress, self._held_back = new.progress, 0.0
        if dumped(old) == dumped(new) or plan.gone:
            self._record(job, plan, now, ())
            return
        patience = _patience(old, new)
        # Where the clock was put back, nothing waits for what it said before.
        if 0.0 <= now - self._written_at < patience:
            self._held_back = self._written_at + patience
            self._record(job, plan, now, ())
            return
        written = await self.around.executor.write_status(self.raw, new)
        self.raw = _slim(written) if _parsed_from(job, written) else written
        self._read = (written["metadata"]["resourceVersion"], new)
        if old.attempts and old.attempts[-1].number < new.attempts[-1].number:
            self.around.telemetry.restarted(old.attempts[-1].reason or "Unknown")
        self._written_at = now
        for event in plan.events:
            logger.info("%s: %s", event.reason, event.message)
            self.around.events.tell(job, event)
        self._record(job, plan, now, plan.events)

    def _record(self, job: Job, plan: Plan, now: float, events: tuple[Event, ...]) -> None:
        lost = self.around.store.view(job.run_id).lost
        records = changes(job, None if lost else self._recorded, plan.status, events, now)
        self.around.store.record(job.run_id, records)
        self._recorded = plan.status

    async def _after(self, job: Job, plan: Plan) -> None:
        if any(isinstance(action, RemoveFinalizer) for action in plan.actions):
            await self.around.executor.release(job, self.raw)
        if plan.gone:
            self.leave()

    def _learn(self, plan: Plan, outcome: Outcome) -> None:
        if outcome.refusal is not None:
            self._refusal = outcome.refusal
            logger.warning("Refused: %s", outcome.refusal.message)
        elif outcome.created:
            self._refusal = None
        self._acceptable = outcome.acceptable

    def _pause(self, plan: Plan, outcome: Outcome, now: float) -> float:
        if outcome.refusal is not None or outcome.acceptable:
            return 0.0
        resync = RESYNC_SECONDS * random.uniform(0.8, 1.2)
        if self._held_back:
            resync = min(resync, max(0.05, self._held_back - now))
        return resync if plan.wake_at is None else min(resync, max(0.05, plan.wake_at - self.around.now()))

    def _observe(self, job: Job) -> Observed:
        store, view = self.around.store, self.around.store.view(job.run_id)
        return Observed(
            pods=self.around.world.pods_of(self.key, job.uid),
            gone=self.around.world.gone_of(self.key, job.uid),
            support=self.around.world.support_of(self.key, job.uid),
            refusal=self._refusal,
            acceptable=self._acceptable,
            store=store.state,
            store_since=store.since,
            progress=view.progress,
            checkpoint=view.checkpoint,
            alerts=view.alerts,
            recorded_attempt=view.attempt,
            reached=view.reached,
        )

    def _status(self) -> DAPOJobStatus:
        status = self._written()
        # Progress that waits for its turn to be written is known all the same.
        return status.model_copy(update={"progress": self._progress}) if self._progress else status

    def _written(self) -> DAPOJobStatus:
        """The status as it was written last, read once."""
        version = self.raw["metadata"]["resourceVersion"]
        if self._read is None or self._read[0] != version:
            self._read = (version, status_of(self.raw))
        return self._read[1]

    def _known(self) -> DAPOJobStatus:
        """The status as it was at the last look."""
        return self._read[1] if self._read is not None else DAPOJobStatus()

    def _parsed(self) -> Job:
        meta = self.raw["metadata"]
        known = self._job
        if known is None or not _parsed_from(known, self.raw):
            self._job = job_of(self.raw, self.around.site)
        elif known.held != (FINALIZER in meta.get("finalizers", ())):
            self._job = replace(known, held=not known.held)
        assert self._job is not None
        return self._job

    def _follow(self, job: Job) -> None:
        """Have the job's progress read while there may be any; the last metrics may come after the end."""
        ended = next(
            (each for each in self._written().conditions if each.type in _ENDS and each.status == "True"), None
        )
        late = ended is not None and age(ended.last_transition_time, self.around.now()) > LAST_NEWS_SECONDS
        if job.job is None or job.deleting_since is not None or late:
            self.around.store.forget(job.run_id)
        else:
            self.around.store.watch(job.run_id, job.spec, self.wake)

    def conditions(self) -> list[str]:
        """The conditions that are true now."""
        return [each.type for each in self._known().conditions if each.status == "True"]

    def leave(self) -> None:
        """The job is gone."""
        self.gone = True
        self.around.world.forget(self.key)
        self.around.telemetry.forget(self.key)
        if self._job is not None:
            self.around.store.forget(self._job.run_id)

    async def _reread(self) -> float:
        """The plan was made of something old, or something was not found: see what there is."""
        try:
            self.raw = await self.around.executor.read(self.key)
        except NotFoundError:
            self.leave()
        except ApiError as error:
            logger.warning("%s", error.message)
        return BACKOFF.first

    def _attempt_number(self) -> int | None:
        attempts = self._known().attempts
        return attempts[-1].number if attempts else None


def _parsed_from(job: Job, raw: Object) -> bool:
    """Whether parsing this state would give the same job, but for its finalizer."""
    meta = raw["metadata"]
    deleted = "deletionTimestamp" in meta
    return (job.uid, job.generation, job.deleting_since is not None) == (
        meta["uid"],
        meta.get("generation", 1),
        deleted,
    )


def _slim(raw: Object) -> Object:
    """The object without what was parsed of it; a state that is newer comes whole."""
    return {key: raw[key] for key in ("apiVersion", "kind", "metadata")}


def version_of(raw: Object) -> int:
    """Which of two states of one object is the newer one; Kubernetes counts them up."""
    return int(raw["metadata"]["resourceVersion"])


def _patience(old: DAPOJobStatus, new: DAPOJobStatus) -> float:
    """Seconds that this change may wait for others."""
    # The first step is news; those after it are in the metadata store for whoever can not wait.
    if _step(old) is None and _step(new) is not None:
        return 0.0
    if _same(old, new, "rollout_replicas"):
        return COUNT_SECONDS
    return PROGRESS_SECONDS if _same(old, new, "rollout_replicas", "progress", "checkpoint") else 0.0


def _same(old: DAPOJobStatus, new: DAPOJobStatus, *but: str) -> bool:
    """Whether two statuses say the same in all other fields."""
    return dumped(old.model_copy(update={field: getattr(new, field) for field in but})) == dumped(new)


def _step(status: DAPOJobStatus) -> int | None:
    return status.progress.step if status.progress is not None else None
