"""How a pod that has to go tells the driver, so that the job loses no step: a key in Ray's own key-value store."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Final

KEY: Final = b"dapo:leaving-pod"
LOOK_SECONDS: Final = 2.0


def leaving_pod() -> str | None:
    """The pod that has to go, for a process that is connected to Ray."""
    from ray.experimental import internal_kv

    value: bytes | None = internal_kv._internal_kv_get(KEY)
    return None if value is None else value.decode()


def watch(on_leaving: Callable[[str], None]) -> None:
    """Call `on_leaving` once, from a thread of its own, when a pod has to go."""

    def look() -> None:
        while (pod := leaving_pod()) is None:
            threading.Event().wait(LOOK_SECONDS)
        on_leaving(pod)

    threading.Thread(target=look, name="leaving-pods", daemon=True).start()


def main() -> None:
    """`python -m dapo_trainer.pod.drain POD`, on a node of the cluster."""
    import ray
    from ray.experimental import internal_kv

    ray.init(address=os.environ.get("DAPO_HEAD_ADDRESS", "auto"), log_to_driver=False)
    internal_kv._internal_kv_put(KEY, sys.argv[1].encode())
    ray.shutdown()


if __name__ == "__main__":
    main()
