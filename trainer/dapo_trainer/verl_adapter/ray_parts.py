"""Ray's own processes, without those that nobody uses in a run on one machine.

These serve Ray's dashboard, its job API and its autoscaler: the API server, the monitor, and the agent that collects
metrics on each node. `ray.init` has no options for them. GCS, raylet, runtime environments and the log monitor stay:
the last one brings what workers print to the trainer's log.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

AGENT: Final = "dapo_trainer.verl_adapter.ray_agent"
_AGENT_OPTION: Final = "--dashboard_agent_command="
_SESSION: Final = "--session-dir="


@contextmanager
def without_unused() -> Iterator[None]:
    """`ray.init` in this block starts a local cluster without them."""
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
