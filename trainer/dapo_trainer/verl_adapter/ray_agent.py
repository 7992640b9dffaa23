"""Takes the place of Ray's dashboard agent, which a raylet cannot do without: answers its start, and does nothing.

Run by the raylet as `python -m dapo_trainer.verl_adapter.ray_agent SESSION_FOLDER` (`ray_processes`).
"""

import importlib
import os
import select
import sys
from contextlib import suppress
from typing import Final

NOT_IN_USE: Final = -1  # the port of a service, as the agent of a Ray without its dashboard reports it


def main() -> None:
    ray = importlib.import_module("ray._raylet")
    for service in (ray.METRICS_AGENT_PORT_NAME, ray.METRICS_EXPORT_PORT_NAME, ray.DASHBOARD_AGENT_LISTEN_PORT_NAME):
        ray.persist_port(sys.argv[1], os.environ["RAY_NODE_ID"], service, NOT_IN_USE)
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(int(os.environ["RAY_RAYLET_PID"]))], [], [])  # until it has ended


if __name__ == "__main__":
    main()
