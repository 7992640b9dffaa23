"""A trainer process: `python -m dapo_trainer.main`, the same in a pod and below `dapo run`.

Reads the job and its places from the environment, restores the newest committed checkpoint, trains, and ends with an
exit code of `dapo_core.run.reasons` and last words that say why.
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from dapo_core.db import CheckpointRow, MetadataWriter, open_reader, open_writer
from dapo_core.errors import CheckpointError, DapoError, StoreError
from dapo_core.jobspec import DAPOJob, load_job
from dapo_core.objectstore import open_store
from dapo_core.run.checkpoint import FileEntry, Retention
from dapo_core.run.last_words import LastWords, ending
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.checkpoints.restore import Restored, patiently, restore
from dapo_trainer.checkpoints.store import CheckpointStore
from dapo_trainer.checkpoints.uploads import CheckpointUploader
from dapo_trainer.pod.gate import Gate
from dapo_trainer.report import RunReport
from dapo_trainer.samples import SampleLog
from dapo_trainer.spool.sender import Sender
from dapo_trainer.spool.spool import Spool

log = logging.getLogger("dapo_trainer")

# How long a trainer that is done, or was asked to stop, may take to bring its last metrics and checkpoint home.
FLUSH_SECONDS = 60.0
UPLOAD_SECONDS = 240.0


class StopRequested(KeyboardInterrupt):
    """SIGTERM before the first step: there is nothing to save. Ray lets no other exception of a handler through."""


@dataclass(frozen=True)
class Places:
    """The environment of a trainer process (docs/architecture.md)."""

    job_file: Path
    run_id: str
    attempt: int
    metadata_url: str
    store_url: str
    work: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Places":
        return cls(
            job_file=Path(environment["DAPO_JOB"]),
            run_id=environment["DAPO_RUN_ID"],
            attempt=int(environment["DAPO_ATTEMPT"]),
            metadata_url=environment["DAPO_METADATA_URL"],
            store_url=environment["DAPO_STORE_URL"],
            work=Path(environment["DAPO_WORK_DIR"]),
        )


class Trainer:
    """One attempt: its stores, opened in order and closed in reverse, around the training itself."""

    def __init__(self, places: Places, job: DAPOJob) -> None:
        self.places, self.job = places, job
        self.stop = threading.Event()
        self.training = False
        self._session: Any = None  # the adapter's, which is imported late
        self._cluster: Any = None
        self._gate: Gate | None = None
        self._other_nodes: Any = None
        self._writer: MetadataWriter = open_writer(places.metadata_url)
        self._spool = Spool(places.work / "spool", places.attempt)
        earlier = sorted(places.work.parent.glob("attempt-*/spool")) if places.work.name.startswith("attempt-") else []
        others = [folder for folder in earlier if folder != self._spool.folder]
        self._sender = Sender(self._spool.folder, self._writer, places.run_id, earlier=others, tell=self._tell)
        store = open_store(places.store_url)
        # With pods of their own, ranks bring and store their files where they run.
        mine = (lambda entry: entry.rank is None) if "RAY_ADDRESS" in os.environ else (lambda _: True)
        self._checkpoints = CheckpointStore(store, places.run_id, self._spool, mine)
        kept = job.spec.checkpoints
        retention = Retention(kept.keep_last, kept.keep_best, kept.best_metric)
        self._uploads = CheckpointUploader(self._checkpoints, retention, elsewhere=self._elsewhere)
        self._samples = SampleLog(store, places.run_id, places.attempt, self._spool)
        self.report = RunReport(
            places.work / "heartbeat.json",
            self._spool,
            self._samples,
            self._uploads,
            job.spec.digest(),
            lambda: self._sender.lag.seconds,
        )

    def _tell(self, reason: str, message: str) -> None:
        self._spool.event(reason, message, type="Normal" if reason == "StoreReachable" else "Warning")

    def train(self) -> None:
        """Raises DapoError (StoppedError for a clean stop), StopRequested, or whatever verl and Ray raise."""
        self.report.phase("start", 0, 0, "checking model and data")
        resumed = self._restore()
        config = self._compose(None if resumed is None else resumed.folder)
        from omegaconf import OmegaConf

        from dapo_trainer.verl_adapter.cluster import Cluster

        self.report.phase("start", 0, 0, "starting Ray")
        self._cluster = cluster = Cluster(config)
        self.watch_for_stop()  # Ray has put a handler of its own in this one's place
        if "RAY_ADDRESS" in os.environ:
            self._gather_pods(cluster)
        self.report.phase("start", 0, 0, "loading verl and vLLM")
        from dapo_trainer.verl_adapter import runner
        from dapo_trainer.verl_adapter.session import Session

        settings = OmegaConf.to_container(config.dapo)
        assert isinstance(settings, dict)
        step = 0 if resumed is None else resumed.manifest.step
        session = Session(self.report, settings, stop=self.stop, last_recorded=step, last_saved=step)
        if self._gate is not None:
            session.on_ranks = lambda workers: self._spread(workers, resumed)
        self._session = session
        runner.run(config, session, cluster, on_ready=self._ready)

    def _gather_pods(self, cluster: Any) -> None:
        """Let the job's other pods join, and wait for all of them."""
        from dapo_trainer.verl_adapter.cluster import wait_for
        from dapo_trainer.verl_config.placement import node_resources

        cluster.queue_ready()
        host = os.environ["RAY_ADDRESS"].rpartition(":")[0]
        self._gate = Gate(host, self._pod_leaves)
        wait_for(node_resources(self.job.spec), lambda missing: self.report.phase("start", 0, 0, missing))

    def _spread(self, workers: Sequence[Any], resumed: Restored | None) -> None:
        """From here on ranks' files are stored where they run; those of `resumed` are brought there."""
        from dapo_trainer.verl_adapter.node_files import Origin, OtherNodes

        self._other_nodes = OtherNodes(self.places.store_url, self.places.run_id, workers)
        if resumed is None:
            return
        try:
            self._other_nodes.bring(Origin(resumed.store_url, resumed.manifest), resumed.folder)
        except CheckpointError as error:  # its ranks' files are read now only: the next attempt takes the one before
            self._checkpoints.condemn(resumed.manifest, str(error))
            raise

    def _elsewhere(self, step: int, folder: Path) -> Sequence[FileEntry]:
        return () if self._other_nodes is None else self._other_nodes.put(step, folder)

    def _pod_leaves(self, pod: str) -> None:
        self._tell("PodLeaves", f"{pod} has to go: saving a checkpoint and stopping.")
        os.kill(os.getpid(), signal.SIGTERM)

    def _ready(self) -> None:
        self.training = True

    def _restore(self) -> Restored | None:
        """The checkpoint to go on from, in a folder as verl names it; None to start from the first step."""
        places = self.places
        found = patiently(
            lambda: restore(self._checkpoints, self.job, places.work, places.attempt, self._known),
            lambda message: self.report.phase("start", 0, 0, message),
        )
        step = 0 if found is None else found.manifest.step
        self._remember(lambda: self._writer.attempt_resumed(places.run_id, places.attempt, step))
        if found is None:
            return None
        message = f"Going on from the checkpoint of step {step} of {found.manifest.run_id}."
        self.report.event("Normal", "Resumed", message, step)
        return found

    def _known(self) -> Sequence[CheckpointRow]:
        reader = open_reader(self.places.metadata_url)
        try:
            return reader.checkpoints(self.places.run_id)
        finally:
            reader.close()

    def _compose(self, resumed: Path | None) -> Any:
        from omegaconf import OmegaConf

        from dapo_trainer.preflight import fetch
        from dapo_trainer.verl_adapter import environment
        from dapo_trainer.verl_config import Placement, compose
        from dapo_trainer.verl_config.device import detect

        placement = Placement(detect(), os.environ.get("RAY_ADDRESS"))
        os.environ.update(environment(placement.device))
        config = compose(self.job.spec, placement, fetch(self.job, self.places.work, resumed))
        plain = OmegaConf.to_container(config, resolve=False)
        self._remember(lambda: self._writer.update_run(self.places.run_id, config=plain))
        return config

    @staticmethod
    def _remember(write: Any) -> None:
        """A note for people that is not worth waiting for: the database may be down, and training does not need it."""
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

    def close(self) -> bool:
        """Bring home what is still on its way; whether all of it arrived."""
        uploaded = self._uploads.close(UPLOAD_SECONDS)
        self._samples.close()
        written = self._spool.close(FLUSH_SECONDS)
        return self._sender.close(FLUSH_SECONDS) and written and uploaded

    def leave(self, *, done: bool) -> None:
        """Let go of the other pods and of Ray; after a fault both may be beyond an answer, and are left."""
        if self._gate is not None:
            self._gate.close(done=done)
        if done and self._cluster is not None:
            self._cluster.close()

    @property
    def step(self) -> int | None:
        return None if self._session is None else self._session.last_recorded


def _run(places: Places, job: DAPOJob) -> tuple[ExitCode, LastWords]:
    trainer = Trainer(places, job)
    trainer.watch_for_stop()
    code, words = ExitCode.DONE, LastWords(Reason.COMPLETED, "All steps are done.")
    try:
        trainer.train()
    except BaseException as error:
        code, words = ending(error)
        if code != ExitCode.TERMINATED:
            traceback.print_exc()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trainer.report.phase("stop", trainer.step or 0, 0, "bringing home the last metrics and checkpoint")
    if not trainer.close() and code == ExitCode.DONE:
        message = "The final metrics or checkpoint could not be uploaded."
        code, words = ExitCode.STORES, LastWords(Reason.STORES_UNREACHABLE, message)
    trainer.leave(done=code == ExitCode.DONE)
    return code, LastWords(words.reason, words.message, trainer.step)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    begun = time.monotonic()
    places = Places.of(os.environ)
    try:
        code, words = _run(places, load_job(places.job_file))
    except DapoError as error:
        code, words = ending(error)
    log.info("%s: %s (exit code %d after %.0f s)", words.reason, words.message, code, time.monotonic() - begun)
    words.leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of Ray and vLLM outlive a failed run, and would keep this process for ever


if __name__ == "__main__":
    main()
