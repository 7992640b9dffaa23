"""Ray workers with a runtime environment (verl's FSDP ranks have one) stay forks.

Ray starts such a worker by a program that sets its variables and then executes a new Python, which would have to import
all of verl again. Here that program goes on as the worker instead.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from dapo_trainer.process.fork_child import Command, NeedsInterpreter, run_file
from dapo_trainer.process.fork_server import check_environment


def in_place() -> None:
    """In this process and its forks, start workers without executing a new Python, where that makes no difference."""
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
