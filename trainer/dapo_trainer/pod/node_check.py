"""What a pod of a GPU job checks of its node before it fetches anything: minutes of download are lost otherwise."""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from dapo_core.errors import DistributedFaultError, NodeUnfitError
from dapo_core.jobspec import DAPOJob
from dapo_core.naming import Role, child_name
from dapo_trainer.doctor.bandwidth import BETWEEN, Group
from dapo_trainer.doctor.check import Check, failures
from dapo_trainer.doctor.examination import Machine, examine, host

log = logging.getLogger(__name__)

NODE_NAME: Final = "DAPO_NODE_NAME"
# At which the first trainer pod lets the others meet it; Ray's own ports begin at 6379 and 10001.
PORT: Final = 29511
# Pods of a gang start together, but one may still pull its image: then bandwidth is not measured, which is a warning.
MEET_SECONDS: Final = 120.0
Examine = Callable[[Machine], Iterable[Check]]


def machine(job: DAPOJob, role: Role, environment: Mapping[str, str]) -> Machine:
    """What a pod needs of its node. Stores and the head's address are not part of it: others wait for them."""
    layout = job.spec.topology.layout
    gpus, peers = layout.gpus_per_pod(role), None
    if role == "trainer" and layout.pods["trainer"] > 1:
        name = child_name(job.metadata.name, "trainer", int(environment["DAPO_ATTEMPT"]), 0)
        domain = environment["DAPO_HEAD_ADDRESS"].rpartition(":")[0].partition(".")[2]
        first = f"{name}.{domain}" if domain else name
        index = int(environment["DAPO_INDEX"])
        peers = Group("cuda", gpus, layout.pods["trainer"], index, first, PORT, MEET_SECONDS)
    return Machine("cuda", gpus, Path(environment["DAPO_WORK_DIR"]), peers=peers)


def check_node(job: DAPOJob, role: Role, environment: Mapping[str, str], examine: Examine = examine) -> None:
    """Log every check. Unless the job only warns, raises NodeUnfitError, which names the node and what it lacks; or
    DistributedFaultError when nothing but the sum with other nodes fails, as that can be any node's fault: the next
    attempt must not avoid all of them."""
    mode = job.spec.run_policy.preflight
    if mode == "Skip" or not job.spec.topology.trainer.gpus_per_pod:
        return
    checks = []
    for check in examine(machine(job, role, environment)):
        log.info("%s: %s", check.verdict, check.sentence)
        checks.append(check)
    unfit = failures(checks)
    if not unfit or mode != "Require":
        return
    node = environment.get(NODE_NAME) or host()
    if all(check.name == BETWEEN for check in unfit):
        # Without the error itself: the operator would take what is said of a device for a fault of this node.
        raise DistributedFaultError(
            f"The preflight's {BETWEEN} failed on node {node}, and any of the nodes may be the cause: see this pod's "
            "log, and docs/install.md on hangs."
        )
    raise NodeUnfitError(f"Node {node} is unfit: " + "; ".join(check.sentence for check in unfit) + ".")
