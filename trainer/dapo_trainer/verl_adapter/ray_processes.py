"""How Ray's processes start: none that nobody uses, and workers as forks, whose random ids differ."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dapo_trainer.process.fork_child import Command, NeedsInterpreter, run_file
from dapo_trainer.process.fork_server import check_environment

AGENT: Final = "dapo_trainer.verl_adapter.ray_agent"
_AGENT_OPTION: Final = "--dashboard_agent_command="
_SESSION: Final = "--session-dir="


@contextmanager
def without_unused() -> Iterator[None]:
    """`ray.init` in this block starts a local cluster without the processes that a run on one machine does not use.

    These serve Ray's dashboard, its job API and its autoscaler: the API server, the monitor, and the agent that
    collects metrics on each node. `ray.init` has no options for them. GCS, raylet, runtime environments and the log
    monitor stay: the last one brings what workers print to the trainer's log.
    """
    from ray._private import services
    from ray._private.node import Node

    with (
        _replaced(Node, "start_monitor", lambda _: None),
        _replaced(Node, "start_api_server", _no_api_server),
        _replaced(services, "start_ray_process", _idle_agent(services.start_ray_process)),
    ):
        yield


def _no_api_server(node: Any, **_: Any) -> None:
    node._webui_url = ""  # as where Ray is installed without its dashboard


def _idle_agent(start: Any) -> Any:
    """The raylet ends with its agent, so it needs one; ours does nothing."""

    def start_ray_process(command: list[str], *args: Any, **kwargs: Any) -> Any:
        return start([_with_idle_agent(word) for word in command], *args, **kwargs)

    return start_ray_process


def _with_idle_agent(option: str) -> str:
    """Any other option than that of the agent's command is returned as it is."""
    if not option.startswith(_AGENT_OPTION):
        return option
    words = shlex.split(option.removeprefix(_AGENT_OPTION))
    folder = next(word.removeprefix(_SESSION) for word in words if word.startswith(_SESSION))
    return _AGENT_OPTION + shlex.join([sys.executable, "-m", AGENT, folder])


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def none_drawn() -> Iterator[None]:
    """In this block, `@ray.remote` takes the ids of classes from the kernel, not from Ray's generator.

    Ray's generator is seeded when the first id is drawn and, unlike Python's, does not notice a fork: the copies of a
    process that has drawn an id all draw the same ones. Two workers that start at the same time then test their object
    store with the same object. One of them crashes, and the driver waits forever for it to register.
    """
    import ray.actor as actors

    before = actors.ActorClassID
    actors.ActorClassID = _ClassIds
    try:
        yield
    finally:
        actors.ActorClassID = before


class _ClassIds:
    """Draws ids of classes as `ray.ActorClassID` does."""

    @staticmethod
    def from_random() -> object:
        from ray import ActorClassID

        return ActorClassID(os.urandom(ActorClassID.size()))


def differ_in_copies() -> bool:
    """Whether two copies of this process, which has one thread, would draw different ids."""
    return _drawn_in_a_copy() != _drawn_in_a_copy()


def _drawn_in_a_copy() -> bytes:
    from ray import JobID, TaskID

    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, TaskID.for_fake_task(JobID.from_int(1)).binary())
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as answer:
        drawn = answer.read()
    os.waitpid(child, 0)
    return drawn


def in_place() -> None:
    """In this process and its forks, start workers without executing a new Python, where that makes no difference.

    Ray starts a worker with a runtime environment (verl's FSDP ranks have one) by a program that sets its variables and
    then executes a new Python, which would have to import all of verl again. Here it goes on as the worker instead.
    """
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray.core.generated.common_pb2 import Language

    execute = RuntimeEnvContext.exec_worker

    def exec_worker(self: RuntimeEnvContext, arguments: Sequence[str], language: int) -> None:
        if language != Language.PYTHON or not _can_become(self):
            execute(self, arguments, language)
            return
        update_envs(self.env_vars)
        run_file(Command("file", arguments[0], list(arguments[1:])))

    RuntimeEnvContext.exec_worker = exec_worker


def _can_become(context: Any) -> bool:
    """Whether this process can become the worker of that runtime environment."""
    if context.command_prefix or context.override_worker_entrypoint or context.py_executable != sys.executable:
        return False
    try:
        check_environment({**os.environ, **context.env_vars}, os.environ)
    except NeedsInterpreter:
        return False
    return True
