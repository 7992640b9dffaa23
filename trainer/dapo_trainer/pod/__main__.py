"""`python -m dapo_trainer.pod head|trainer|rollout`: one pod of a job."""

import logging
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from dapo_core.errors import DapoError
from dapo_core.jobspec import DAPOJobSpec, load_job
from dapo_core.naming import ROLES, Role
from dapo_core.run.last_words import LastWords, ending
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.pod.node import LOST_AFTER_SECONDS, NODE_IP, READY_FILE, PodEnvironment, RayNode, check_node, device
from dapo_trainer.pod.pod_roles import become_driver, serve
from dapo_trainer.pod.recorded_output import record_output
from dapo_trainer.verl_adapter import environment as engine_environment

log = logging.getLogger("dapo_trainer.pod")


def _set_environment(spec: DAPOJobSpec) -> None:
    """Set what Ray's processes pass on to every actor they start."""
    os.environ["DAPO_DEVICE"] = device(spec)
    os.environ.update(engine_environment(device(spec)))
    os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = str(LOST_AFTER_SECONDS)
    for folder in ("HOME", "TMPDIR"):
        if path := os.environ.get(folder):
            os.makedirs(path, exist_ok=True)


def _run(role: Role) -> ExitCode:
    environment = PodEnvironment.of(os.environ)
    job = load_job(environment.job_file)
    spec = job.spec
    _set_environment(spec)
    environment.ready.unlink(missing_ok=True)  # of an earlier pod of this name, on a disk that outlived it
    check_node(job, role, os.environ)
    os.environ[NODE_IP] = environment.ip
    # For the engine, which Ray starts in this pod: it is the engine that makes a rollout pod ready.
    os.environ[READY_FILE] = str(environment.ready)
    slots = spec.topology.layout.slots_per_pod(role)
    node = RayNode(role, slots, environment.ip, environment.shm_bytes, environment.pod)
    if role == "head":
        signal.signal(signal.SIGTERM, _stopped)  # until the driver has a handler of its own
        become_driver(node, environment, spec)
    return serve(node, environment, spec)


def _end(code: ExitCode, words: LastWords) -> NoReturn:
    log.info("%s: %s (exit code %d)", words.reason, words.message, code)
    words.leave()
    sys.exit(code)


def _stopped(_number: int, _frame: FrameType | None) -> NoReturn:
    _end(ExitCode.TERMINATED, _WORDS[ExitCode.TERMINATED])


_WORDS = {
    ExitCode.DONE: LastWords(Reason.COMPLETED, "The driver is done."),
    ExitCode.TERMINATED: LastWords(Reason.TERMINATED, "Stopped on request."),
    ExitCode.DISTRIBUTED: LastWords(Reason.DISTRIBUTED_FAULT, "The driver, or Ray on this pod, is lost."),
}


def main() -> None:
    record_output(os.environ)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if len(sys.argv) != 2 or sys.argv[1] not in ROLES:
        _end(ExitCode.USAGE, LastWords(Reason.USAGE, f"Expected one role: {', '.join(ROLES[:-1])} or {ROLES[-1]}."))
    try:
        code = _run(sys.argv[1])
    except DapoError as error:
        _end(*ending(error))
    _end(code, _WORDS[code])


if __name__ == "__main__":
    main()
