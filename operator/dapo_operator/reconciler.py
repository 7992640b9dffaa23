"""One DAPOJob in the operator: observe, plan, carry out, wait."""

import asyncio
import logging
import time
from contextlib import nullcontext
from typing import Final

from dapo_core.backoff import Backoff
from dapo_core.run.reasons import Reason
from dapo_core.run.status import DAPOJobStatus
from dapo_operator.children import JobKey
from dapo_operator.executor import ActionResult, LeftoverPodsError, Refusals
from dapo_operator.job_state import JobState, StatusWrites, counted_conditions
from dapo_operator.jobs.actions import AddFinalizer, Event, Plan, RemoveFinalizer
from dapo_operator.jobs.dapojob import Job, UnreadableStatusError
from dapo_operator.jobs.observed import Observed, Refusal
from dapo_operator.jobs.planner import plan as make_plan
from dapo_operator.jobs.planner.dispatch import plan_dispatch
from dapo_operator.jobs.status_changes import changes
from dapo_operator.kube.objects import ApiError, ConflictError, NotFoundError, Object, RefusedError, age
from dapo_operator.metadata_store import RunSnapshot
from dapo_operator.shared import Shared
from dapo_operator.telemetry.log_format import bound

logger = logging.getLogger(__name__)

# A safety net that reads nothing: everything that matters wakes a job by itself.
RESYNC_SECONDS: Final = 300.0
# Debounce bursts, such as ten pods that change together; react to the first change after a calm immediately.
SETTLE_SECONDS: Final = 0.1
CALM_SECONDS: Final = 2.0
# The last metrics may be recorded this long after the end of a run.
LATE_METRICS_SECONDS: Final = 600.0
# The metrics count a job with a status that this version cannot read under this name.
FROZEN: Final = "Frozen"
BACKOFF: Final = Backoff(1.0, 60.0)


class Reconciler:
    """Works on one DAPOJob until it is gone."""

    def __init__(self, key: JobKey, shared: Shared, raw: Object) -> None:
        self.key, self.shared = key, shared
        self.state = JobState(raw, shared.site)
        self.gone = False
        self._writes = StatusWrites(shared.site.status_delay_seconds)
        self._refusal: Refusal | None = None
        self._undeletable: Refusal | None = None
        self._acceptable = False
        self._recorded: DAPOJobStatus | None = None
        self._woken = asyncio.Event()
        self._failures = 0
        self._frozen = False
        self._lost_file: str | None = None
        self._others_pods: tuple[str, ...] = ()
        self._flavors: dict[str, Object] = {}
        self._position: int | None = None
        # What the last plan knew of the run, and when progress that came since is looked at.
        self._seen = RunSnapshot()
        self._later: asyncio.TimerHandle | None = None

    def update(self, raw: Object) -> None:
        """The DAPOJob as the watch reports it; a state that is not newer than the known one is dropped."""
        if self.state.is_older_than(raw):
            self.state.raw = raw
            self.wake()

    def wake(self) -> None:
        """The job, one of its children or its progress has changed."""
        self.shared.telemetry.woken(self.key)
        self._woken.set()

    def _reported(self) -> None:
        """The metadata store has something new. Progress alone is looked at when it may be written: a plan for each
        step of a thousand runs is most of what they cost."""
        job = self.state.last_job
        assert job is not None
        if not self.shared.store.view(job.run_id).only_advances(self._seen):
            self.wake()
        elif self._later is None:
            wait = self._writes.progress_in(self.shared.now())
            self._later = asyncio.get_running_loop().call_later(wait, self.wake)

    def _forget_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    async def run(self) -> None:
        """Reconcile and wait, until the job is gone."""
        with bound(job=f"{self.key[0]}/{self.key[1]}"):
            while not self.gone:
                self._woken.clear()
                await self._wait(await self.reconcile())

    async def _wait(self, seconds: float) -> None:
        if self._failures or self.gone:
            # The error itself may have woken the job.
            await asyncio.sleep(0 if self.gone else seconds)
            return
        try:
            began = time.monotonic()
            async with asyncio.timeout(seconds):
                await self._woken.wait()
            if time.monotonic() - began < CALM_SECONDS:
                await asyncio.sleep(SETTLE_SECONDS)
        except TimeoutError:
            return

    async def reconcile(self) -> float:
        """Reconcile once and never raise; returns the seconds until the next time, if nothing happens before."""
        async with self.shared.slots.place(self.key[0]):
            try:
                with self.shared.telemetry.reconciling(self.key, self._attempt_number()):
                    wait = await self._reconcile()
            except (ConflictError, NotFoundError):
                return await self._reread()
            except LeftoverPodsError as error:
                logger.warning("%s", error)
                return self._backoff()
            except ApiError as error:
                logger.warning("%s", error.message)
                return self._backoff()
            except Exception:
                # A bug that one job runs into must not stop the work on all others.
                logger.exception("Could not reconcile this job.")
                return self._backoff()
            self._failures = 0
            return wait

    async def _reconcile(self) -> float:
        shared = self.shared
        try:
            job, written = self.state.load()
        except UnreadableStatusError as error:
            return await self._freeze(error)
        self._frozen = False
        if job.is_anothers:
            # Its status is that controller's, too.
            return await self._dispatch(job, written)
        self._watch_run(job, written)
        if job.deleting_since is None and not shared.store.ready():
            # The metadata store knows from which checkpoint an attempt starts, if it can be read.
            return 1.0
        job = await self._with_job_file(job, written)
        if job.named_run is not None:
            shared.named_runs.setdefault(job.named_run)
        if self._others_pods:
            self._others_pods = await shared.executor.others_pods(job)
        await self._read_flavors(job)
        await self._read_position(job)
        now = shared.now()
        plan = make_plan(job, self._writes.with_unwritten(written), self._observe(job), now, shared.site)
        with shared.starting(job.run_id, self.key) if _begins(self.state.written(), plan) else nullcontext():
            await self._prepare(job, plan)
            await self._write_status(job, plan, now)
            return await self._carry_out(job, plan, now)

    async def _dispatch(self, job: Job, written: DAPOJobStatus) -> float:
        """Ask Kueue for room in another cluster, if that is where the job is to run. All else, and the status, is that
        cluster's: what goes wrong here is only an Event. Raises RefusedError."""
        shared, known = self.shared, self.shared.children.reservations_of(self.key, job.uid)
        plan = plan_dispatch(job, written, known, shared.site)
        for event in plan.events:
            shared.events.post(job.reference, event.type, event.reason, event.message)
        refusal = (await shared.executor.act(self.key, job, plan, shared.now(), Refusals())).refusal
        if refusal is not None:
            shared.events.post(job.reference, "Warning", Reason.API_REFUSED, f"{refusal.what}: {refusal.message}")
            raise RefusedError(refusal.message)
        return RESYNC_SECONDS

    async def _with_job_file(self, job: Job, written: DAPOJobStatus) -> Job:
        """The job as its run knows it: with the defaults in its job file, where another version of the platform has
        filled them in, or somebody has scaled the job. Without the file the next attempt takes over those of now."""
        pinned = written.pinned
        if job.parsed is None or job.deleting_since is not None or pinned is None or pinned.revision is None:
            return job
        if not job.is_as_pinned(pinned) or pinned.revision in (job.revision, self._lost_file):
            return job
        # An operator that died may not have written that of a scaled job.
        revisions = [each for each in (pinned.revision, pinned.scaled_from) if each is not None]
        if job.kept is not None and job.kept.read in revisions:
            return job
        if (file := await self.shared.executor.job_file(job, revisions)) is not None:
            return self.state.replace_job(job.keeping(*file))
        self._lost_file = pinned.revision
        message = (
            f"The job file of revision {pinned.revision} cannot be read: the next attempt takes over the defaults "
            "and the image of the installed version of the platform."
        )
        self.shared.events.post(job.reference, "Warning", "JobFileLost", message)
        return job

    async def _carry_out(self, job: Job, plan: Plan, now: float) -> float:
        """The plan's actions; returns the seconds until the next reconciliation."""
        executor = self.shared.executor
        outcome = await executor.act(self.key, job, plan, now, Refusals(self._refusal, self._undeletable))
        self._learn(outcome)
        if any(isinstance(action, RemoveFinalizer) for action in plan.actions):
            await executor.remove_finalizer(job, self.state.raw)
        if plan.gone:
            self.leave()
        return self._next_in(plan, outcome, now)

    async def _freeze(self, error: UnreadableStatusError) -> float:
        """Leave the job, its pods and its status as they are: which of the pods are still needed is known only to
        whoever wrote the status. A deleted job needs none of them."""
        job = self.state.last_job
        assert job is not None
        if job.is_anothers:
            return RESYNC_SECONDS
        if not self._frozen:
            message = (
                f"The operator cannot read the job's status and leaves the job and its pods as they are ({error}). "
                "Upgrade the operator to the version that wrote the status, or remove what it cannot read with "
                f"`kubectl edit dapojob {job.name} --subresource=status`."
            )
            logger.error("%s", message)
            self.shared.events.post(job.reference, "Warning", "StatusUnreadable", message)
        self._frozen = True
        if job.deleting_since is None:
            return RESYNC_SECONDS
        now = self.shared.now()
        plan = make_plan(job, DAPOJobStatus(), self._observe(job), now, self.shared.site)
        return await self._carry_out(job, plan, now)

    def _watch_run(self, job: Job, written: DAPOJobStatus) -> None:
        """Have the run's progress read while there may be any."""
        ends = (each for each in written.conditions if each.type in ("Succeeded", "Failed") and each.status == "True")
        late = any(age(end.last_transition_time, self.shared.now()) > LATE_METRICS_SECONDS for end in ends)
        if job.parsed is None or job.deleting_since is not None or late:
            self.shared.store.forget(job.run_id)
        else:
            self.shared.store.watch(job.run_id, job.spec, self._reported)

    def _observe(self, job: Job) -> Observed:
        children, store, view = self.shared.children, self.shared.store, self.shared.store.view(job.run_id)
        if self._is_foreign(job):
            view = RunSnapshot(known=view.known, namespace=view.namespace)
        self._seen = view
        self._forget_later()
        pods = children.pods_of(self.key, job.uid)
        return Observed(
            pods=pods,
            nodes=self.shared.nodes.of(pod.node for pod in pods),
            offering=self.shared.nodes.offering(job.accelerator),
            gone=children.gone_of(self.key, job.uid),
            support=children.support_of(self.key, job.uid),
            refusal=self._refusal,
            undeletable=self._undeletable,
            acceptable=self._acceptable,
            store=store.state,
            store_since=store.since,
            store_failed_at=store.failed_at,
            progress=view.progress,
            time=view.time,
            checkpoint=view.checkpoint,
            alerts=view.alerts,
            recorded_attempt=view.attempt,
            reached=view.reached,
            run_known=view.known,
            run_namespace=view.namespace,
            run_pods=self._others_pods,
            reservations=children.reservations_of(self.key, job.uid),
            flavors=self._flavors,
            queue_position=self._position,
        )

    async def _read_position(self, job: Job) -> None:
        """The place of a Workload that waits."""
        queue = job.spec.run_policy.gang.queue if job.parsed is not None else None
        reservations = self.shared.children.reservations_of(self.key, job.uid)
        waiting = [each.name for each in reservations if not each.admitted]
        positions, now = self.shared.executor.positions, self.shared.now()
        self._position = await positions.of(job.namespace, queue, waiting[-1], now) if queue and waiting else None

    async def _read_flavors(self, job: Job) -> None:
        """The ResourceFlavors that Kueue has assigned to an attempt: read again until it has pods, and once for
        those that replace them."""
        reservations = self.shared.children.reservations_of(self.key, job.uid)
        names = {name for each in reservations for placement in each.placements.values() for name in placement.flavors}
        if names - self._flavors.keys() or (names and not self.shared.children.pods_of(self.key, job.uid)):
            self._flavors = await self.shared.executor.flavors(sorted(names))

    def _is_foreign(self, job: Job) -> bool:
        """Whether the job names a run of another namespace, in its spec or in a status that somebody else wrote, or may
        do so: nothing is read or recorded of it."""
        view = self.shared.store.view(job.run_id)
        return view.namespace not in (None, job.namespace) or (job.named_run is not None and not view.known)

    async def _prepare(self, job: Job, plan: Plan) -> None:
        """What has to be certain before the status is written."""
        executor, written = self.shared.executor, self.state.written()
        if written.attempts and _begins(written, plan):
            await executor.confirm_no_pods(self.key, plan.status.attempts[-1])
        if job.run_id in self.shared.named_runs and _begins(written, plan):
            self._others_pods = await executor.others_pods(job)
            if self._others_pods:
                raise LeftoverPodsError(f"Pods of another job exist for run {job.run_id}: {self._others_pods[0]}")
        if any(isinstance(action, AddFinalizer) for action in plan.actions):
            self.state.raw = await self.shared.executor.add_finalizer(job, self.state.raw)

    async def _write_status(self, job: Job, plan: Plan, now: float) -> None:
        old, new = self.state.written(), plan.status
        self._writes.runs = self.shared.store.watched
        due = self._writes.due(old, new, now)
        if plan.gone or not due:
            self._record(job, plan, now, ())
            return
        self.state.accept(await self.shared.executor.write_status(self.state.raw, new), new)
        if old.attempts and old.attempts[-1].number < new.attempts[-1].number:
            self.shared.telemetry.restarted(old.attempts[-1].reason or "Unknown")
        self._writes.wrote(now)
        for event in plan.events:
            logger.info("%s: %s", event.reason, event.message)
            self.shared.events.post(job.reference, event.type, event.reason, event.message)
        self._record(job, plan, now, plan.events)

    def _record(self, job: Job, plan: Plan, now: float, events: tuple[Event, ...]) -> None:
        if self._is_foreign(job):
            return
        lost = self.shared.store.view(job.run_id).lost
        records = changes(job, None if lost else self._recorded, plan.status, events, now)
        self.shared.store.record(job.run_id, records)
        self._recorded = plan.status

    def _learn(self, outcome: ActionResult) -> None:
        if outcome.refusal is not None:
            self._refusal = outcome.refusal
            logger.warning("The API server refused %s: %s", outcome.refusal.what, outcome.refusal.message)
        elif outcome.created:
            self._refusal = None
        if outcome.undeletable is not None:
            self._undeletable = outcome.undeletable
            logger.warning("Could not delete %s: %s", outcome.undeletable.what, outcome.undeletable.message)
        elif outcome.deleted:
            self._undeletable = None
        self._acceptable = outcome.acceptable

    def _next_in(self, plan: Plan, outcome: ActionResult, now: float) -> float:
        """Seconds until the next reconciliation, if nothing happens before."""
        if outcome.refusal is not None or outcome.undeletable is not None or outcome.acceptable:
            return 0.0
        wait = RESYNC_SECONDS * self.shared.random.uniform(0.8, 1.2)
        if self._writes.due_at is not None:
            wait = min(wait, max(0.05, self._writes.due_at - now))
        return wait if plan.wake_at is None else min(wait, max(0.05, plan.wake_at - self.shared.now()))

    def _backoff(self) -> float:
        self._failures += 1
        return BACKOFF.delay(self._failures, self.shared.random.random())

    async def _reread(self) -> float:
        """The plan was made from an old state, or an object was not found: read the job again."""
        try:
            self.state.raw = await self.shared.executor.read(self.key)
        except NotFoundError:
            self.leave()
        except ApiError as error:
            logger.warning("%s", error.message)
        return BACKOFF.first

    def conditions(self) -> list[str]:
        """What the metrics count of this job; only FROZEN for one whose status cannot be read."""
        if self._frozen:
            return [FROZEN]
        return counted_conditions(self.state.last_status, self.shared.now())

    def leave(self) -> None:
        """The job is gone: forget it everywhere."""
        self.gone = True
        self._forget_later()
        self.shared.children.forget(self.key)
        self.shared.telemetry.forget(self.key)
        if (job := self.state.last_job) is not None:
            self.shared.store.forget(job.run_id)

    def _attempt_number(self) -> int | None:
        attempts = self.state.last_status.attempts
        return attempts[-1].number if attempts else None


def _begins(written: DAPOJobStatus, plan: Plan) -> bool:
    """Whether the plan starts another attempt."""
    old, new = written.attempts, plan.status.attempts
    return bool(new) and (not old or new[-1].number > old[-1].number)
