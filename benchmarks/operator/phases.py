"""What happens to the jobs of a benchmark, and what is measured of it."""

import time
from concurrent.futures import ThreadPoolExecutor

from audit_log import by_verb
from observer import percentiles
from process_usage import spent, wait_until
from stage import Figures, Key, Moment, Stage


def create(stage: Stage) -> Figures:
    """All jobs at once."""
    stage.say(f"creating {len(stage.jobs)} jobs")
    rest, before, begun = stage.meter.memory(stage.subject.name), stage.meter.all_cpu(), Moment.now()
    with ThreadPoolExecutor(8) as pool:
        posted = dict(zip(stage.jobs, pool.map(stage.post, stage.jobs), strict=True))
    wanted = len(stage.jobs) * stage.subject.pods
    limit = stage.options.limit
    wait_until(lambda: stage.observer.alive >= wanted, "all pods exist", limit)
    pods = begun.seconds()
    stage.say(f"all pods exist after {pods:.1f} s")
    wait_until(lambda: len(stage.observer.ready) >= len(stage.jobs), "all jobs are ready", limit)
    ready = begun.seconds()
    stage.say(f"all jobs are ready after {ready:.1f} s")
    stage.quiet()
    cpu = spent(before, stage.meter.all_cpu())
    requests = stage.audit.since(begun.wall)
    last = [max(stage.observer.pods[key].values()) - posted[key].steady for key in stage.jobs]
    spread = [max(at.values()) - min(at.values()) for at in stage.observer.pods.values()]
    return {
        "pods_exist_s": pods,
        "jobs_ready_s": ready,
        "controllers_rest_s": begun.seconds() + wait_until(stage.rests, "the control plane rests", limit),
        "job_to_last_pod_s": percentiles(last),
        "first_to_last_pod_s": percentiles(spread),
        "create_cpu_s": cpu,
        "requests_per_job": len(requests) / len(stage.jobs),
        "looks_per_job": stage.looks() / len(stage.jobs),
        "requests": dict(by_verb(requests).most_common()),
        "memory_at_rest_mib": rest,
        "memory_after_create_mib": stage.meter.memory(stage.subject.name),
    }


def idle(stage: Stage) -> Figures:
    """Nothing happens, but that the jobs make progress if there is a store."""
    stage.train()
    stage.say(f"idle for {stage.options.idle:g} s")
    before, begun = stage.meter.all_cpu(), Moment.now()
    steps = stage.training.steps if stage.training else 0
    time.sleep(stage.options.idle)
    minutes = begun.seconds() / 60
    cpu = {name: seconds / minutes for name, seconds in spent(before, stage.meter.all_cpu()).items()}
    requests = by_verb(stage.audit.since(begun.wall))
    found = {"idle_cpu_s_per_minute": cpu, "idle_requests": dict(requests), "idle_s": stage.options.idle}
    found["idle_memory_mib"] = stage.meter.memory(stage.subject.name)
    return found | ({"idle_steps": stage.training.steps - steps} if stage.training else {})


def churn(stage: Stage) -> Figures:
    """Pods deleted two per second: seconds until the first write about it, and until the job is ready."""
    keys = _every_so_many(stage)
    stage.train()
    stage.say(f"deleting a pod of {len(keys)} jobs")
    before, begun = stage.meter.all_cpu(), Moment.now()
    deleted = {}
    for key in keys:
        deleted[key] = stage.delete_a_pod(key)
        time.sleep(0.5)
    wait_until(lambda: stage.whole(keys, begun.steady), "the deleted pods are replaced", stage.options.limit)
    if stage.training:
        stage.training.pause()
    stage.quiet()
    requests = stage.audit.since(begun.wall)
    acted = [first_write(stage, key, at.wall) - at.wall for key, at in deleted.items()]
    whole = [stage.last_pod(key) - at.steady for key, at in deleted.items()]
    return {
        "delete_to_action_s": percentiles(acted),
        "delete_to_whole_s": percentiles(whole),
        "churn_requests_per_delete": len(requests) / len(keys),
        "churn_requests": dict(by_verb(requests).most_common()),
        "churn_cpu_s": spent(before, stage.meter.all_cpu()),
    }


def repair(stage: Stage) -> Figures:
    """Rollout pods that are gone at once, two per second: seconds until each one's successor is created, and what its
    job costs until the number of rollouts was written as well."""
    if stage.training:
        stage.training.pause()
    stage.quiet()
    keys = _every_so_many(stage)
    stage.say(f"a rollout pod of {len(keys)} jobs is gone")
    before, begun = stage.meter.all_cpu(), Moment.now()
    gone = {}
    for key in keys:
        gone[key] = stage.delete_a_pod(key, "rollout", gracePeriodSeconds=0)
        time.sleep(0.5)
    wait_until(lambda: stage.whole(keys, begun.steady), "the rollouts are replaced", stage.options.limit)
    cpu = stage.meter.cpu(stage.subject.name) - before[stage.subject.name]
    time.sleep(stage.options.settle)
    requests = [
        each
        for each in stage.audit.since(begun.wall)
        if each.resource != "leases" and each.verb not in ("watch", "list")
    ]
    pods = [each for each in requests if (each.verb, each.resource) == ("create", "pods")]
    created = {(each.namespace, each.name.partition("-rollout-")[0]): each for each in pods}
    return {
        "gone_to_created_s": percentiles([created[key].at - at.wall for key, at in gone.items()]),
        "gone_to_whole_s": percentiles([stage.last_pod(key) - at.steady for key, at in gone.items()]),
        "requests_per_repair": len(requests) / len(keys),
        "repair_requests": dict(by_verb(requests).most_common()),
        "repair_cpu_s": cpu,
    }


def restart(stage: Stage) -> Figures:
    """kill -9, a pod deleted meanwhile, and the restart: seconds until the operator acts on it."""
    key = stage.jobs[len(stage.jobs) // 2]
    stage.say("kill -9, and the start")
    with stage.killed():
        stage.delete_a_pod(key)
        before, begun = stage.meter.all_cpu(), Moment.now()
    wait_until(lambda: stage.whole([key], begun.steady), "the deleted pod is replaced", stage.options.limit)
    acted = first_write(stage, key, begun.wall) - begun.wall
    stage.quiet()
    return {
        "restart_to_acting_s": acted,
        "restart_requests": dict(by_verb(stage.audit.since(begun.wall)).most_common()),
        "restart_cpu_s": stage.meter.cpu(stage.subject.name) - before[stage.subject.name],
        "restart_memory_mib": stage.meter.memory(stage.subject.name),
    }


def first_write(stage: Stage, key: Key, after: float) -> float:
    """When the operator first wrote anything about the job."""
    names = key[1], f"{key[1]}-"
    for request in stage.audit.since(after):
        about = request.name == names[0] or request.name.startswith(names[1])
        # A pod that the server names, as KubeRay's, has no name in the request; then any of the namespace counts.
        if request.writes and request.namespace == key[0] and (about or not request.name):
            return request.at
    raise LookupError(f"the operator wrote nothing about {key}")


def _every_so_many(stage: Stage) -> list[Key]:
    """As many jobs as pods are to be deleted, from all namespaces."""
    return stage.jobs[:: max(1, len(stage.jobs) // stage.options.deletes)][: stage.options.deletes]
