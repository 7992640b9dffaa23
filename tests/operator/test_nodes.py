"""Nodes that are drained or lost: what is read of them, and what becomes of the jobs on them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from planner_bench import START, Bench, raw_job

from dapo_core.run.last_words import LastWords
from dapo_operator.children import Children
from dapo_operator.jobs.actions import CreatePod
from dapo_operator.jobs.builders.scheduling import Avoid, avoiding
from dapo_operator.jobs.node_state import HEALTHY, Node, node_of
from dapo_operator.jobs.planner.draft import SILENT_SECONDS
from dapo_operator.kube.objects import timestamp
from dapo_operator.node_cache import NodeCache

GPU_NODES = {"a": 8, "b": 8, "c": 8}
HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"
BUDGET = ("PodDisruptionBudget", "first")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def raw_node(name: str = "n", ready: str = "True", message: str = "", **spec: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "message": message, "lastTransitionTime": timestamp(START)}
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": meta, "spec": spec, "status": {"conditions": [condition]}}


def tainted(key: str) -> dict[str, Any]:
    return raw_node(taints=[{"key": key, "effect": "NoSchedule"}])


@pytest.mark.parametrize(
    ("raw", "node"),
    [
        pytest.param(raw_node(), HEALTHY, id="healthy"),
        pytest.param({"metadata": {"name": "new"}}, HEALTHY, id="no status yet"),
        pytest.param(raw_node(ready="False", message="container runtime is down"), HEALTHY, id="not ready"),
        pytest.param(raw_node(unschedulable=True), Node(leaving="it is cordoned"), id="cordoned"),
        pytest.param(raw_node(ready="Unknown"), Node(silent_since=START), id="silent"),
        pytest.param(
            raw_node(ready="False", message="node is shutting down"), Node(leaving="it is shutting down"), id="shutdown"
        ),
        pytest.param(
            tainted("cloud.google.com/impending-node-termination"),
            Node(leaving="taint cloud.google.com/impending-node-termination"),
            id="spot",
        ),
        pytest.param(
            tainted("node.kubernetes.io/out-of-service"),
            Node(gone="it has taint node.kubernetes.io/out-of-service"),
            id="out of service",
        ),
        pytest.param(tainted("nvidia.com/gpu"), HEALTHY, id="a pool's own taint"),
    ],
)
def test_what_is_read_of_a_node(raw: dict[str, Any], node: Node) -> None:
    assert node_of(raw) == node


def silent_of(count: int) -> NodeCache:
    """Ten nodes, of which so many are silent."""
    cache = NodeCache(lambda name: None)
    for number in range(10):
        cache.put(raw_node(str(number), ready="Unknown" if number < count else "True"))
    return cache


@pytest.mark.parametrize(("count", "believed"), [(1, True), (5, True), (6, False), (10, False)])
def test_nodes_that_are_silent_together_are_not_lost(count: int, believed: bool) -> None:
    assert (silent_of(count).of(["0"])["0"].silent_since is not None) == believed


def test_a_deleted_node_is_gone_and_one_that_was_never_seen_is_not() -> None:
    changed: list[str] = []
    cache = NodeCache(changed.append)
    for name in ("a", "b"):
        cache.put(raw_node(name))
    assert changed == [], "there is nothing to say about a healthy node"
    cache.drop(raw_node("a"))
    cache.keep(set(), None, "9")
    assert cache.of(["a", "b", "never", None]) == {name: Node(gone="it was deleted") for name in ("a", "b")}
    cache.put(raw_node("a"))
    assert (set(cache.of(["a", "b"])), changed, cache.offering("")) == ({"b"}, ["a", "b"], {"a": 1})


def test_a_node_wakes_the_jobs_on_it_and_no_others() -> None:
    woken: list[tuple[str, str]] = []
    children = Children(woken.append)
    for job, node in (("one", "a"), ("two", "b")):
        labels = {"dapo.io/job": job, "dapo.io/role": "head", "dapo.io/attempt": "1", "dapo.io/index": "0"}
        meta = {"name": job, "namespace": "team", "uid": job, "resourceVersion": "1", "labels": labels}
        children.pods.put({"metadata": meta, "spec": {"nodeName": node}})
    woken.clear()
    children.node_changed("a")
    children.node_changed("c")
    assert woken == [("team", "one")]
    children.pods.drop(
        {"metadata": {"name": "one", "namespace": "team", "uid": "one", "labels": {"dapo.io/job": "one"}}}
    )
    woken.clear()
    children.node_changed("a")
    assert woken == []


def on_nodes(bench: Bench, **nodes: Node) -> Bench:
    """The head runs on node `a`, the trainer on `b`; three nodes in all."""
    if HEAD in bench.pods:
        bench.change(HEAD, node="a", address="10.0.0.1")
    if TRAINER in bench.pods:
        bench.change(TRAINER, node="b", address="10.0.0.2")
    bench.seen = replace(bench.seen, nodes=nodes, offering=GPU_NODES)
    return bench


CORDONED = Node(leaving="it is cordoned")


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_cordon_saves_a_checkpoint_and_moves_the_job(node: str) -> None:
    bench = on_nodes(Bench(slow_deletion=True).training(), **{node: CORDONED}).settle()
    assert bench.attempts == [(1, "Drained")]
    assert bench.deleted == [HEAD], "its workers are needed for the checkpoint"
    bench.finish(HEAD, 143, "Terminated").settle()
    bench.vanish(HEAD).settle()
    bench.vanish(TRAINER).settle()
    assert bench.attempts == [(1, "Drained"), (2, None)]
    assert (bench.status.restarts_counted, bench.names) == (0, ["first-head-2-0", "first-trainer-2-0"])


def _cordon(bench: Bench) -> None:
    on_nodes(bench, a=CORDONED).settle()


def _evict(pod: str) -> Callable[[Bench], None]:
    def evict(bench: Bench) -> None:
        bench.change(pod, deleting=True, delete_by=bench.now + 30, disruption="Evicted").settle()

    return evict


def _suspend(bench: Bench) -> None:
    bench.edit(suspend=True).settle()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param(_cordon, "Drained", id="cordoned"),
        pytest.param(_evict(HEAD), "Evicted", id="head evicted"),
        pytest.param(_evict(TRAINER), "Evicted", id="trainer evicted"),
        pytest.param(_suspend, "SuspendedByUser", id="suspended"),
    ],
)
@pytest.mark.parametrize(
    ("code", "known"),
    [
        pytest.param(143, 143, id="saved"),
        pytest.param(137, 137, id="killed"),
        pytest.param(10, None, id="a code that would fail the job"),
    ],
)
def test_the_exit_code_tells_how_the_driver_left(
    end: Callable[[Bench], None], reason: str, code: int, known: int | None
) -> None:
    bench = Bench(slow_deletion=True).training()
    end(bench)
    bench.finish(HEAD, code).settle().vanish(HEAD).settle()
    bench.vanish(TRAINER).settle(60)
    ended = bench.status.attempts[0]
    assert (ended.reason, ended.exit_code, ended.counted) == (reason, known, False)
    assert bench.status.phase == ("Suspended" if end is _suspend else "Starting")


def test_a_run_that_completes_while_its_head_is_evicted_is_complete() -> None:
    bench = Bench(slow_deletion=True).training()
    _evict(HEAD)(bench)
    bench.finish(HEAD, 0, disruption=None).finish(TRAINER, 0).settle().vanish(HEAD).settle()
    assert bench.holds("Succeeded")


def test_a_cordon_moves_pods_that_start_too() -> None:
    bench = on_nodes(Bench().settle(), b=CORDONED).settle()
    assert bench.attempts == [(1, "Drained"), (2, None)]


def test_drains_are_not_limited() -> None:
    bench = Bench(raw_job(runPolicy={"maxUncountedRestarts": 1})).settle()
    for number in range(1, 6):
        bench.change_all(node="a")
        bench.seen = replace(bench.seen, nodes={"a": CORDONED})
        bench.settle()
        bench.settle(600)
        assert bench.status.attempts[-1].number == number + 1


def test_deny_stays_on_a_cordoned_node_behind_a_budget() -> None:
    bench = Bench(raw_job(runPolicy={"disruption": "Deny"})).training()
    on_nodes(bench, b=CORDONED).settle()
    assert bench.attempts == [(1, None)]
    assert BUDGET in bench.seen.support


def test_deny_holds_while_an_edited_spec_is_invalid() -> None:
    bench = Bench(raw_job(runPolicy={"disruption": "Deny"})).training()
    bench.edit(topology={"trainer": {"podTemplate": 5}})
    on_nodes(bench, b=CORDONED).settle()
    assert bench.attempts == [(1, None)]
    assert BUDGET in bench.seen.support


def test_a_budget_exists_only_while_it_protects_something() -> None:
    bench = Bench(raw_job(runPolicy={"disruption": "Deny"})).training()
    bench.edit(suspend=True).settle()
    assert BUDGET not in bench.seen.support, "suspended"
    bench.edit(suspend=False).settle()
    assert BUDGET in bench.seen.support
    bench.run_all().settle().edit(runPolicy={"disruption": "CheckpointAndMove"}).settle()
    assert BUDGET not in bench.seen.support, "may be moved"
    bench.edit(runPolicy={"disruption": "Deny"}).settle()
    assert BUDGET in bench.seen.support
    bench.finish("first-head-2-0", 0).finish("first-trainer-2-0", 0).settle()
    assert bench.says("Succeeded")[0] == "True"
    assert BUDGET not in bench.seen.support, "over"


@pytest.mark.parametrize("lost", ["a", "b"], ids=["head", "worker"])
def test_b11_a_deleted_node_costs_ten_seconds(lost: str) -> None:
    """The pods of the node are forced at once, the others have nothing to save."""
    bench = Bench(slow_deletion=True, grace=330).training()
    on_nodes(bench, **{lost: Node(gone="it was deleted")}).settle()
    here, there = (HEAD, TRAINER) if lost == "a" else (TRAINER, HEAD)
    assert bench.forced == [here]
    assert bench.pods[there].delete_by == bench.now + 10
    bench.vanish(there).settle()
    assert bench.attempts == [(1, "NodeLost"), (2, None)]
    assert bench.status.restarts_counted == 0


@pytest.mark.parametrize("lost", ["a", "b"], ids=["head", "worker"])
def test_b11_a_silent_node_is_lost_after_a_while(lost: str) -> None:
    bench = Bench(slow_deletion=True, grace=330).training()
    on_nodes(bench, **{lost: Node(silent_since=bench.now)}).settle()
    assert (bench.attempts, bench.look().wake_at) == ([(1, None)], bench.now + SILENT_SECONDS)
    bench.settle(SILENT_SECONDS)
    assert bench.attempts == [(1, "NodeLost")]
    bench.vanish(TRAINER if lost == "a" else HEAD).settle()
    assert bench.attempts == [(1, "NodeLost"), (2, None)]


def test_a_silent_node_that_is_back_has_cost_nothing() -> None:
    bench = Bench().training()
    on_nodes(bench, b=Node(silent_since=bench.now)).settle(SILENT_SECONDS - 1)
    on_nodes(bench).settle(60)
    assert bench.attempts == [(1, None)]


@pytest.mark.parametrize(
    ("ended", "stays", "node"), [(HEAD, TRAINER, "b"), (TRAINER, HEAD, "a")], ids=["lost worker", "lost head"]
)
def test_b11_the_next_attempt_starts_within_a_minute_of_the_loss(ended: str, stays: str, node: str) -> None:
    """A peer ends with 30 after 20 seconds; after 50 the control plane gives the node up. Without that, the workers'
    330 s of grace and 45 more were waited for."""
    bench = on_nodes(Bench(slow_deletion=True, grace=330).training())
    lost_at = bench.now
    bench.settle(20).finish(ended, 30, "DistributedFault", "A peer is gone.").settle()
    if ended in bench.pods:
        bench.vanish(ended).settle()
    bench.settle(29)
    assert bench.attempts == [(1, "DistributedFault")]
    on_nodes(bench, **{node: Node(silent_since=bench.now)}).settle(1)
    assert bench.forced == [stays]
    assert bench.attempts == [(1, "NodeLost"), (2, None)]
    assert bench.now - lost_at <= 60
    assert bench.status.restarts_counted == 0


XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def fail(bench: Bench, pod: str, code: int, message: str, address: str | None = None) -> Bench:
    """An attempt ends by this pod; the next one starts."""
    number = bench.status.attempts[-1].number
    bench.run_all().settle(1)
    bench.change(f"first-head-{number}-0", node="a", address="10.0.0.1")
    bench.change(f"first-trainer-{number}-0", node="b", address="10.0.0.2")
    bench.seen = replace(bench.seen, offering=GPU_NODES)
    name = f"first-{pod}-{number}-0"
    bench.finish(name, code).change(name, words=LastWords("X", message, address=address))
    while bench.settle(30).status.attempts[-1].number == number:
        pass
    return bench


def avoided(bench: Bench) -> list[str]:
    """Node names that the pods of the newest attempt must not run on."""
    if not bench.holds("NodesAvoided"):
        return []
    return [name for name in ("a", "b") if f" {name} (" in bench.condition("NodesAvoided").message]


def test_an_unfit_node_is_avoided_at_once() -> None:
    bench = fail(Bench().settle(), "trainer", 15, "Node b is unfit: GPU 3 has no ECC.")
    assert bench.says("NodesAvoided") == ("True", "NodesAvoided")
    assert avoided(bench) == ["b"]
    assert [fault.node for fault in bench.status.node_faults or ()] == ["b"]


@pytest.mark.parametrize(
    ("pod", "message", "address"),
    [("trainer", XID, None), ("head", "DistBackendError: NCCL error: unhandled system error", "10.0.0.2")],
    ids=["a pod's own words", "the driver names the rank"],
)
def test_the_second_device_fault_of_a_day_counts(pod: str, message: str, address: str | None) -> None:
    bench = fail(Bench().settle(), pod, 30, message, address)
    assert avoided(bench) == []
    fail(bench, pod, 30, message, address)
    assert avoided(bench) == ["b"]
    bench.run_all().settle(1).now += 86_400
    fail(bench, "head", 1, "ValueError: something else")
    assert bench.says("NodesAvoided") == ("False", "NodesForgiven")


def test_two_faults_further_apart_do_not() -> None:
    bench = fail(Bench().settle(), "trainer", 30, XID)
    bench.run_all().settle(1).now += 86_400
    assert avoided(fail(bench, "trainer", 30, XID)) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param({}, [{}], id="none"),
        pytest.param(
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [1]}, {}]}}}},
            [{"matchExpressions": [1]}, None],
            id="the user's terms, of which an empty one matches nothing",
        ),
        pytest.param(
            {"affinity": {"podAffinity": {"x": 1}, "nodeAffinity": {PREFERRED: [1]}}}, [{}], id="other affinities"
        ),
    ],
)
def test_each_alternative_of_the_users_affinity_avoids_the_nodes(given: dict[str, Any], kept: list[Any]) -> None:
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("a", "b")]
    before = repr(given)
    made = avoiding(given, Avoid(("a", "b"), required=True))
    terms = made["affinity"]["nodeAffinity"].pop(REQUIRED)["nodeSelectorTerms"]
    assert terms == [{**term, "matchFields": fields} if term is not None else {} for term in kept]
    assert repr(given) == before
    preferred = avoiding(given, Avoid(("a",)))["affinity"]["nodeAffinity"][PREFERRED]
    assert preferred[-1] == {"weight": 100, "preference": {"matchFields": fields[:1]}}


def must_avoid(bench: Bench, name: str) -> bool:
    """Whether this pod, once it is created, must not run on the nodes that the job avoids, or only should not."""
    while not (made := [action.body for action in bench.step(5).actions if isinstance(action, CreatePod)]):
        pass
    [body] = [body for body in made if body["metadata"]["name"] == name]
    affinity = body["spec"]["affinity"]["nodeAffinity"]
    assert (REQUIRED in affinity) != any("metadata.name" in repr(entry) for entry in affinity.get(PREFERRED, ()))
    return REQUIRED in affinity


@pytest.mark.parametrize(
    ("offering", "trainer"),
    [
        pytest.param({"a": 8, "c": 8}, True, id="another node has as many"),
        pytest.param({"b": 8}, False, id="no other node has GPUs, however many there are"),
        pytest.param({"b": 8, "c": 4}, False, id="the other one has too few"),
        pytest.param({}, False, id="no node has GPUs yet"),
        pytest.param(None, False, id="nodes are not watched"),
    ],
)
def test_only_nodes_that_can_take_the_pods_make_it_a_must(offering: dict[str, int] | None, trainer: bool) -> None:
    bench = Bench(raw_job(topology={"trainer": {"replicas": 1, "gpusPerPod": 8}})).settle()
    bench.run_all().settle(1)
    bench.change(HEAD, node="a").change(TRAINER, node="b")
    bench.seen = replace(bench.seen, offering=offering)
    bench.finish(TRAINER, 15, "NodeUnfit", "Node b is unfit.")
    assert must_avoid(bench, "first-trainer-2-0") is trainer


def test_what_nodes_offer_follows_their_state() -> None:
    cache = NodeCache(lambda name: None)
    assert cache.offering("nvidia.com/gpu") is None
    gpus, none = {"cpu": "64", "nvidia.com/gpu": "8", "memory": "1Ti"}, {"cpu": "8", "nvidia.com/gpu": "0"}
    for name, allocatable in (("a", gpus), ("b", gpus), ("c", none), ("d", None)):
        raw = raw_node(name)
        raw["status"]["allocatable"] = allocatable
        cache.put(raw)
    assert cache.offering("nvidia.com/gpu") == {"a": 8, "b": 8}
    assert cache.offering("") == dict.fromkeys("abcd", 1)
    assert cache.offering("amd.com/gpu") == {}
    cache.put(raw_node("a", unschedulable=True))
    cache.drop(raw_node("b"))
    assert (cache.offering("nvidia.com/gpu"), cache.offering("")) == ({}, {"c": 1, "d": 1})
