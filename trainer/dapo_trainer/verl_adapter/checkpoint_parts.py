"""What of a checkpoint the ranks load next: their weights while the optimizer's state is still arriving, then the rest.

verl's ranks load all of it in one call, whose only argument is a folder; so the parts are set in each rank beforehand.
By default a rank loads everything.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import ray

ACTOR: Final = "actor"
"""verl's folder of the policy in a checkpoint."""
# verl's names, in `checkpoint.load_contents`.
WEIGHTS: Final = frozenset({"model"})
REST: Final = frozenset({"optimizer", "extra"})
ALL: Final = WEIGHTS | REST

_next: frozenset[str] = ALL


def load_weights(config: Any, ranks: Any, folder: Path) -> bool:
    """Let the ranks, a worker group of verl, load the weights from a checkpoint's folder. False, and nothing is done,
    when they run an engine of verl's that loads everything together."""
    if config.actor_rollout_ref.actor.strategy != "fsdp2":
        return False
    load_next(ranks, WEIGHTS)
    ranks.load_checkpoint(local_path=str(folder / ACTOR), del_local_after_load=False)
    return True


def load_next(ranks: Any, parts: Collection[str]) -> None:
    """What the ranks load when they are asked to load a checkpoint."""
    ray.get([worker.__ray_call__.remote(_remember, frozenset(parts)) for worker in ranks.workers])


def parts() -> frozenset[str]:
    """What this rank loads."""
    return _next


def _remember(_rank: Any, parts: frozenset[str]) -> None:
    global _next
    _next = parts
