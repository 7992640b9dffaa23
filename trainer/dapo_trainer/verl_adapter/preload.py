"""The imports of a run's processes, done once for all of them: each is a copy of one that has imported (fork_server).

On CPUs alone: what CUDA's libraries set up while they are loaded is not known to outlive a fork.
"""

import gc
import importlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import Final

from dapo_trainer.process import fork_server
from dapo_trainer.process.fork_child import LAUNCHER
from dapo_trainer.verl_adapter import environment, ray_processes
from dapo_trainer.verl_config.placement import Device, detect_device

log = logging.getLogger(__name__)

SWITCH: Final = "DAPO_FORK_WORKERS"  # 0: each process imports for itself

# "None yet": how Ray starts the workers it has no task for. Whichever job asks first may have them.
JOB_ID: Final = "ffffffff"

# Those of FSDP ranks, and of Ray's own processes beside them.
RANK_MODULES: Final = (
    "verl.workers.engine_workers",
    "dapo_trainer.verl_adapter.node_files",
    "dapo_trainer.verl_adapter.packed_rows",
    "dapo_trainer.verl_adapter.sharded_engine",
    "dapo_trainer.verl_adapter.tcp_transport",
)
# Those of engines, and what vLLM and verl import as they start to work.
ENGINE_MODULES: Final = (
    "dapo_trainer.verl_adapter.group_server",
    "dapo_trainer.verl_adapter.tcp_transport",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.utils",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
# Those and the driver's.
MODULES: Final = (
    "dapo_trainer.verl_adapter.cluster",
    "dapo_trainer.verl_adapter.runner",
    *dict.fromkeys((*RANK_MODULES, *ENGINE_MODULES)),
)


def prepare_processes(loading: Callable[[], None], *, starts_ray: bool) -> Path | None:
    """Set the variables of all processes of this program, and import what they need, once for all of them.

    `loading` reports that the imports begin. Returns the folder of the fork server; None without one, as where Ray and
    its workers were started by others. Call it before the first thread starts.
    """
    device = detect_device()
    os.environ.update(environment(device))
    if not starts_ray:
        return None
    loading()
    return fork_from_here(device)


def fork_from_here(device: Device, modules: Sequence[str] = MODULES) -> Path | None:
    """Import `modules`, then fork the server off: call it before the first thread starts.

    Returns the folder of the server's socket, for the caller to remove at the end; None where processes are started
    one by one.
    """
    if device != "cpu" or os.environ.get(SWITCH) == "0":
        return None
    folder = Path(tempfile.mkdtemp(prefix="dapo-"))
    try:
        listener, program = fork_server.listen(folder)
        if _import_and_start(listener, program, modules):
            os.environ[LAUNCHER] = str(program)
            return folder
    except (OSError, ImportError):
        log.warning("Processes are started one by one.", exc_info=True)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _import_and_start(listener: socket, program: Path, modules: Sequence[str]) -> bool:
    # Ray reads these two as it is imported, once and for all. A worker ends when the process named as its raylet has:
    # the raylet does not outlive this one, and does not end long before it.
    with _blank_logging():
        with _no_collections(), _environment({"RAY_JOB_ID": JOB_ID, "RAY_RAYLET_PID": str(os.getpid())}):
            with ray_processes.none_drawn():
                for module in modules:
                    importlib.import_module(module)
            ray_processes.in_place()
            _inspect_models_by(program)
        if not ray_processes.differ_in_copies():
            log.warning("Imports drew an id from Ray's generator: processes are started one by one.")
            return False
        return fork_server.start(listener, _renew)


def _inspect_models_by(program: Path) -> None:
    """vLLM looks at a model's class in a process of its own, for which each engine would import vLLM once more."""
    if (registry := sys.modules.get("vllm.model_executor.models.registry")) is not None:
        registry._SUBPROCESS_COMMAND[0] = str(program)


def _renew() -> None:
    """In each process: what the imports read from the environment, or drew, for themselves."""
    import numpy

    raylet = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")  # reads the mode of authentication from the environment as it is now
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    numpy.random.seed()  # Python's own generator sees to that itself


@contextmanager
def _blank_logging() -> Iterator[None]:
    """What verl sets up as it is imported is for its workers; this process keeps its own."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers, root.level = before


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(more)
    try:
        yield
    finally:
        for name in more:
            del os.environ[name]


@contextmanager
def _no_collections() -> Iterator[None]:
    """Imports make many objects and no garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
