"""A trainer process: `python -m dapo_trainer.main` below `dapo run`, and what the head pod's first process becomes.

Reads the job and its stores from the environment, resumes from the newest committed checkpoint, trains, and ends with
an exit code of `dapo_core.run.reasons` and last words that say why.
"""

import faulthandler
import logging
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from dapo_core.addresses import host_of
from dapo_core.db import CheckpointRow, MetadataWriter, open_reader, open_writer
from dapo_core.errors import CheckpointError, DapoError, StoreError
from dapo_core.jobspec import DAPOJob, load_job
from dapo_core.objectstore import open_store
from dapo_core.run.checkpoint import FileEntry, Retention
from dapo_core.run.deadlines import LOADING_ENGINES, STARTING_RAY, Deadline
from dapo_core.run.last_words import LastWords, ending
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.checkpoints.background_restore import BackgroundRestore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.checkpoints.fetching import remove_weights
from dapo_trainer.checkpoints.restore import Found, Report, Restored, restore, retry_unreachable
from dapo_trainer.checkpoints.uploader import CheckpointUploader
from dapo_trainer.doctor import gpus
from dapo_trainer.groups.sample_log import SampleLog
from dapo_trainer.plan.architecture import of_folder
from dapo_trainer.plan.gpu_sizes import set_sizes
from dapo_trainer.plan.memory import GpuKind
from dapo_trainer.pod.gate import Gate
from dapo_trainer.process import liveness
from dapo_trainer.process.phase_watch import PhaseWatch
from dapo_trainer.process.processes import dump_stacks
from dapo_trainer.process.trainer_process import Heartbeat, TrainerEnvironment, exit_now
from dapo_trainer.run_report import RunReport
from dapo_trainer.spool import Sender, Spool, StoredTail
from dapo_trainer.trackers.opening import mirrors

if TYPE_CHECKING:  # these import Ray and verl, which is done late and in order
    from omegaconf import DictConfig

    from dapo_trainer.verl_adapter.cluster import Cluster
    from dapo_trainer.verl_adapter.node_files import OtherNodes
    from dapo_trainer.verl_adapter.session import Resumed, Session

log = logging.getLogger("dapo_trainer")

# How long a trainer that is done, or was asked to stop, may take to upload its last metrics and checkpoint.
FLUSH_SECONDS = 60.0
UPLOAD_SECONDS = 240.0
TRACKER_SECONDS = 20.0
STACKS_SECONDS = 5.0


class StopRequested(KeyboardInterrupt):
    """SIGTERM before the first step: there is nothing to save. Ray lets no other exception of a handler through."""


class TrainingAttempt:
    """One attempt: its stores, opened in order and closed in reverse, around the training itself."""

    def __init__(self, environment: TrainerEnvironment, job: DAPOJob) -> None:
        self.environment, self.job = environment, job
        self.stop = threading.Event()
        self.training = False
        self._session: Session | None = None
        self._cluster: Cluster | None = None
        self._gate: Gate | None = None
        self._other_nodes: OtherNodes | None = None
        self._writer: MetadataWriter = open_writer(environment.stores.metadata)
        work, run_id = environment.work, environment.run_id
        self._spool = Spool(work / "spool", environment.attempt)
        earlier = sorted(work.parent.glob("attempt-*/spool")) if work.name.startswith("attempt-") else []
        others = [folder for folder in earlier if folder != self._spool.folder]
        self._sender = Sender(self._spool.folder, self._writer, run_id, earlier=others, notify=self._event)
        store = open_store(environment.stores.objects)
        # With pods of their own, ranks fetch and store their files where they run.
        here = (lambda entry: entry.rank is None) if environment.ray_address else (lambda _: True)
        self._tail = StoredTail(store, run_id)
        self._checkpoints = CheckpointStore(store, run_id, self._spool, here, self._secure_metrics)
        self._restore = BackgroundRestore(self._restore_here, self._report_start)
        kept = job.spec.checkpoints
        retention = Retention(kept.keep_last, kept.keep_best, kept.best_metric)
        self._uploads = CheckpointUploader(self._checkpoints, retention, remote_files=self._remote_files)
        self._samples = SampleLog(store, run_id, environment.attempt, self._spool)
        self._mirrors = mirrors(job, run_id, work.parent, self._event)
        self.watch = PhaseWatch(job.spec.run_policy, self._end_hung, self._alive, liveness=liveness.DRIVER)
        self.report = RunReport(
            work / "heartbeat.json",
            self._spool,
            self._samples,
            self._uploads,
            job.spec.digest(),
            lambda: self._sender.lag.seconds,
            self._mirrors,
            self.watch,
        )

    def _alive(self) -> float:
        return 0.0 if self._session is None else self._session.groups.finished_at

    def _end_hung(self, late: Deadline) -> NoReturn:
        """What hangs saves nothing: its stacks are logged, and the process ends as if it was killed."""
        self._event(late.reason, late.message)
        log.error("%s", late.message)
        faulthandler.dump_traceback(all_threads=True)
        with suppress(psutil.Error, OSError):
            stacks = self.environment.work / "stacks.log"
            dump_stacks(psutil.Process().children(recursive=True), stacks)
            print(stacks.read_text(errors="replace"))
        self._spool.close(STACKS_SECONDS)
        self._sender.close(STACKS_SECONDS)
        exit_now(ExitCode.KILLED, LastWords(late.reason, late.message, self.step))

    def _event(self, reason: str, message: str) -> None:
        self._spool.event(reason, message, type="Normal" if reason == "StoreReachable" else "Warning")

    def train(self) -> None:
        """Raises DapoError (StoppedError for a clean stop), StopRequested, or whatever verl and Ray raise."""
        self.report.phase("start", 0, 0, "checking model and data")
        self._record_origin(self._restore.begin())
        self._deliver_earlier()
        config = self._compose()
        from omegaconf import OmegaConf

        from dapo_trainer.verl_adapter.cluster import Cluster, joined_pods

        self.report.phase("start", 0, 0, STARTING_RAY)
        self._cluster = cluster = Cluster(config)
        self.watch_for_stop()  # Ray has replaced the handler with its own
        if self.environment.ray_address is not None:
            self._gather_pods(cluster, self.environment.ray_address)
            if self.job.spec.topology.mode == "Separated":
                config.actor_rollout_ref.rollout.nnodes = joined_pods(self.job.spec, "rollout")
            if config.trainer.device == "cuda":  # this pod has no GPU to ask
                self._set_sizes(config, cluster.trainer_gpus())
        self.report.phase("start", 0, 0, LOADING_ENGINES)
        from dapo_trainer.verl_adapter import runner
        from dapo_trainer.verl_adapter.session import Session

        settings = OmegaConf.to_container(config.dapo)
        assert isinstance(settings, dict)
        session = Session(self.report, settings, stop=self.stop, resume=self._resume)
        if self._gate is not None:
            fsdp_size = int(config.actor_rollout_ref.actor.fsdp_config.fsdp_size)
            session.dismiss = self._dismiss
            session.on_ranks = lambda workers: self._spread(workers, fsdp_size)
        self._session = session
        runner.run(config, session, cluster, on_ready=self._ready)

    def _gather_pods(self, cluster: "Cluster", ray_address: str) -> None:
        """Let the job's other pods join, and wait for those that the first step needs."""
        from dapo_trainer.verl_adapter.cluster import wait_for
        from dapo_trainer.verl_config.placement import node_resources

        cluster.queue_ready()
        self._gate = Gate(host_of(ray_address), self._pod_leaves)
        wait_for(node_resources(self.job.spec), self._report_start, self._restore.check)

    def _spread(self, workers: Sequence[Any], fsdp_size: int) -> None:
        """From here on ranks' files are stored where they run; those of the checkpoint begin to arrive there."""
        from dapo_trainer.verl_adapter.node_files import OtherNodes

        of = self.environment
        self._other_nodes = OtherNodes(of.stores.objects, of.run_id, of.attempt, workers, fsdp_size)
        if (found := self._restore.found) is not None:
            self._other_nodes.begin_restore(found)

    def _remote_files(self, step: int, folder: Path) -> Sequence[FileEntry]:
        return () if self._other_nodes is None else self._other_nodes.put(step, folder)

    def _pod_leaves(self, pod: str, role: str) -> None:
        session, gate = self._session, self._gate
        if session is not None and gate is not None and session.drain(pod, role, lambda: gate.tell(pod, "drained")):
            return
        self._event("PodLeaves", f"{pod} is being terminated; saving a checkpoint and stopping.")
        os.kill(os.getpid(), signal.SIGTERM)

    def _dismiss(self, pod: str, why: str) -> None:
        log.warning("%s is dismissed: %s", pod, why)
        if self._gate is not None:
            self._gate.tell(pod, "dismissed")

    def _ready(self) -> None:
        self.training = True

    def _restore_here(self, found: Found, report: Report) -> Restored | None:
        """The checkpoint to resume from, with the files that this machine reads; None to start from step 0."""
        of = self.environment
        return retry_unreachable(
            lambda: restore(self._checkpoints, self.job, of.work, of.attempt, self._known, found), report
        )

    def _report_start(self, detail: str) -> None:
        self.report.phase("start", 0, 0, detail)

    def _resume(self, load_weights: Callable[[Path], bool]) -> "Resumed | None":
        """Wait for the files of the checkpoint, here and on other pods, and let the ranks load its weights while others
        are arriving. None to start from step 0."""
        from dapo_trainer.verl_adapter.session import Resumed

        nodes, early, loaded = self._other_nodes, None, False
        if nodes is None and (early := self._restore.wait_for_weights()) is not None:
            assert early.weights is not None
            loaded = load_weights(early.weights)
        restored = self._restore.wait()
        if restored is None:
            return None
        if nodes is None:
            loaded = loaded and early == restored  # it may be older: a file of the first one was corrupt
        else:
            if (weights := nodes.wait_for_weights(restored)) is not None:
                loaded = load_weights(weights)
            try:
                nodes.restore(restored)
            except CheckpointError as error:  # the next attempt takes the previous one
                self._checkpoints.mark_corrupt(restored.manifest, str(error))
                raise
        remove_weights(self.environment.work)
        self._record_origin(restored)
        step = restored.manifest.step
        message = f"Resuming from the checkpoint at step {step} of {restored.manifest.run_id}."
        self.report.event("Normal", "Resumed", message, step)
        if self._session is not None:
            self._session.last_recorded = self._session.last_saved = step
        return Resumed(restored.folder, loaded)

    def _record_origin(self, origin: Restored | None) -> None:
        step, of = 0 if origin is None else origin.manifest.step, self.environment
        self._record(lambda: self._writer.attempt_resumed(of.run_id, of.attempt, step))

    def _deliver_earlier(self) -> None:
        """Deliver the records that pods of earlier attempts left in the object store."""
        try:
            self._sender.add_earlier(self._tail.fetch(self.environment.work / "earlier-spools"))
        except (StoreError, OSError) as error:  # they stay there, for the next attempt or `dapo db deliver`
            message = f"Metrics of earlier attempts cannot be fetched from the object store: {error}"
            self._event("SpoolUnreadable", message)

    def _secure_metrics(self) -> None:
        """What the metadata store has not confirmed goes to the object store. Raises StoreError."""
        try:
            self._tail.save(self._spool.folder, self.environment.attempt)
            self._tail.remove_delivered()
        except OSError as error:  # a disk that fails must not hold up the checkpoint
            log.warning("The spool %s cannot be read: %s", self._spool.folder, error)

    def _known(self) -> Sequence[CheckpointRow]:
        reader = open_reader(self.environment.stores.metadata)
        try:
            return reader.checkpoints(self.environment.run_id)
        finally:
            reader.close()

    def _compose(self) -> "DictConfig":
        from omegaconf import OmegaConf

        from dapo_trainer.preflight import fetch
        from dapo_trainer.verl_config import Placement, compose
        from dapo_trainer.verl_config.placement import detect_device

        placement = Placement(detect_device(), self.environment.ray_address)
        # On GPUs the driver in a pod of its own needs no weights; on processors it reads their shapes.
        weights = placement.ray_address is None or placement.device == "cpu"
        paths = fetch(self.job, self.environment.work, weights=weights)
        config = compose(self.job.spec, placement, paths)
        if placement.device == "cuda" and placement.ray_address is None:
            self._set_sizes(config, gpus.query())
        plain = OmegaConf.to_container(config, resolve=False)
        self._record(lambda: self._writer.update_run(self.environment.run_id, config=plain))
        return config

    def _set_sizes(self, config: "DictConfig", found: Sequence[gpus.Gpu] | None) -> None:
        """Fit batches and engines to the model and the GPUs; their smallest decides."""
        smallest = min(found or (), key=lambda gpu: gpu.memory, default=None)
        gpu = None if smallest is None else GpuKind(smallest.name, smallest.memory / 1024)
        architecture = of_folder(Path(str(config.actor_rollout_ref.model.path)))
        for size in set_sizes(config, self.job.spec, architecture, gpu):
            log.info("%s: %s (%s)", size.key, size.value, size.why)

    @staticmethod
    def _record(write: Callable[[], None]) -> None:
        """Write what training does not need and does not wait for: the database may be down."""
        try:
            write()
        except StoreError as error:
            log.warning("%s", error)

    def watch_for_stop(self) -> None:
        """Let SIGTERM ask for a clean stop. SIGINT is the terminal's; the supervisor decides what it means."""
        signal.signal(signal.SIGTERM, self.request_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def request_stop(self, number: int, _frame: FrameType | None) -> None:
        """SIGTERM: end at the next point that loses nothing; before the first step, at once."""
        self.stop.set()
        if not self.training:
            raise StopRequested

    def close(self, *, done: bool) -> bool:
        """Upload what is still on its way. Returns whether all of it arrived in the stores; trackers may lack steps.
        `done`: the run is complete."""
        for mirror in self._mirrors:
            mirror.finish(TRACKER_SECONDS, done=done)
        uploaded = self._uploads.close(UPLOAD_SECONDS)
        self._samples.close()
        for mirror in self._mirrors:
            mirror.join()
        written = self._spool.close(FLUSH_SECONDS)
        self._record(self._secure_metrics)  # before the wait for a database that may be down
        delivered = self._sender.close(FLUSH_SECONDS)
        if delivered:
            self._record(self._secure_metrics)  # removes what was stored for a later attempt
        return delivered and written and uploaded

    def leave(self, *, done: bool) -> None:
        """Disconnect the other pods and shut Ray down; after a fault Ray may not respond, and is left alone."""
        if self._gate is not None:
            self._gate.close(done=done)
        if done and self._cluster is not None:
            self._cluster.close()

    @property
    def step(self) -> int | None:
        """The last recorded step, None before the session is open."""
        return None if self._session is None else self._session.last_recorded


def _run(environment: TrainerEnvironment, job: DAPOJob) -> tuple[ExitCode, LastWords]:
    trainer = TrainingAttempt(environment, job)
    trainer.watch_for_stop()
    trainer.watch.start()
    code, words = ExitCode.DONE, LastWords(Reason.COMPLETED, "All steps are done.")
    try:
        trainer.train()
    except BaseException as error:
        code, words = ending(error)
        if code != ExitCode.TERMINATED:
            traceback.print_exc()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trainer.watch.stop()
    trainer.report.phase("stop", trainer.step or 0, 0, "uploading the final metrics and checkpoint")
    if not trainer.close(done=code == ExitCode.DONE) and code == ExitCode.DONE:
        message = "The final metrics or checkpoint could not be uploaded."
        code, words = ExitCode.STORES, LastWords(Reason.STORES_UNREACHABLE, message)
    trainer.leave(done=code == ExitCode.DONE)
    return code, replace(words, step=trainer.step)


def _prepare_workers(environment: TrainerEnvironment) -> Path | None:
    """Returns the folder of the fork server, None without one. Call it before the first thread starts."""
    from dapo_trainer.verl_adapter import preload

    def loading() -> None:
        with suppress(OSError):
            beat = Heartbeat("start", 0, 0, time.time(), LOADING_ENGINES)
            beat.write(environment.work / "heartbeat.json")

    return preload.prepare_processes(loading, starts_ray=environment.ray_address is None)


def main() -> NoReturn:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    begun = time.monotonic()
    environment = TrainerEnvironment.of(os.environ)
    folder: Path | None = None
    try:
        job = load_job(environment.job_file)
        folder = _prepare_workers(environment)
        code, words = _run(environment, job)
    except DapoError as error:
        code, words = ending(error)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    log.info("%s: %s (exit code %d after %.0f s)", words.reason, words.message, code, time.monotonic() - begun)
    exit_now(code, words)


if __name__ == "__main__":
    main()
