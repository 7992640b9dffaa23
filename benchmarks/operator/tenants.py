"""Whether one tenant's work delays another's: 2,000 pods of one namespace, and the first pods of others."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from observer import percentiles
from process_usage import wait_until
from stage import Figures, Key, Moment, Stage

LARGE_PODS: Final = 2000
SMALL_JOBS: Final = 10
PAUSE_SECONDS: Final = 1.0
_LARGE: Final = "tenant-large"


def tenants(stage: Stage) -> Figures:
    """Seconds from a small job's creation until its first pod's: alone, and while a large tenant's are created. Each
    small job has a namespace of its own."""
    if stage.training:
        stage.training.pause()
    large = [(_LARGE, f"large-{index:04}") for index in range(LARGE_PODS // stage.subject.pods)]
    wanted = len(large) * stage.subject.pods
    alone, beside = ([(f"tenant-{kind}-{index}", "small") for index in range(SMALL_JOBS)] for kind in ("a", "b"))
    spaces = sorted({space for space, _ in (*large, *alone, *beside)})
    for space in spaces:
        stage.cluster.namespace(space)
    if stage.queues:
        stage.queues.open_in(spaces)
    stage.quiet()
    stage.say("small jobs alone")
    undisturbed = _first_pods(stage, alone)
    stage.quiet()
    stage.say(f"small jobs beside {len(large)} of a large tenant")
    begun = Moment.now()
    with ThreadPoolExecutor(4) as pool:
        posted = [pool.submit(stage.post, key) for key in large]
        disturbed = _first_pods(stage, beside)
        during = _pods(stage, _LARGE, begun)
        for each in posted:
            each.result()
    wait_until(lambda: _pods(stage, _LARGE, begun) >= wanted, "the large tenant has its pods", stage.options.limit)
    pods_exist = begun.seconds()
    stage.quiet()
    return {
        "first_pod_alone_s": percentiles(undisturbed),
        "first_pod_beside_s": percentiles(disturbed),
        "first_pod_delay_s": max(disturbed) - min(undisturbed),
        "large_pods_meanwhile": f"{during} of {wanted}",
        "large_pods_exist_s": pods_exist,
    }


def _first_pods(stage: Stage, keys: Sequence[Key]) -> list[float]:
    """Create these jobs one after the other; seconds until the operator requested the first pod of each."""
    posted = {}
    for key in keys:
        posted[key[0]] = stage.post(key)
        time.sleep(PAUSE_SECONDS)
    begun = min(at.wall for at in posted.values())

    def first() -> dict[str, float]:
        return {
            request.namespace: request.at - posted[request.namespace].wall
            for request in reversed(stage.audit.since(begun))
            if request.namespace in posted and (request.verb, request.resource) == ("create", "pods")
        }

    wait_until(lambda: len(first()) == len(keys), "each small job has a pod", stage.options.limit)
    return list(first().values())


def _pods(stage: Stage, space: str, since: Moment) -> int:
    """Pods that the operator created in a namespace."""
    requests = stage.audit.since(since.wall)
    return sum((each.namespace, each.verb, each.resource) == (space, "create", "pods") for each in requests)
