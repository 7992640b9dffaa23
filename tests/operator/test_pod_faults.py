"""Pods that fail or are taken, and nodes that are lost: what the pure planner makes of them."""

import pytest
from planner_bench import Bench

HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"


@pytest.mark.parametrize("reason", ["Evicted", "NodeRejected", "Preempted", "NodeLost"])
def test_06_eviction_is_not_counted(reason: str) -> None:
    bench = Bench().training().change(HEAD, disruption=reason, deleting=True)
    bench.settle()
    bench.pods.clear()
    bench.settle()
    assert bench.attempts == [(1, reason), (2, None)]
    assert bench.status.restarts_counted == 0


def test_07_node_lost() -> None:
    """A pod that a lost kubelet never removes is removed by force, and only then the next attempt begins."""
    bench = Bench(slow_deletion=True).training()
    bench.change(TRAINER, deleting=True, delete_by=bench.now + 30, disruption="NodeLost", ready=False)
    bench.settle()
    assert bench.status.attempts[-1].reason == "NodeLost"
    bench.vanish(HEAD).settle()
    assert bench.names == [TRAINER]
    assert bench.settle(54).forced == []
    bench.settle(2)
    assert bench.forced == [TRAINER]
    assert bench.attempts == [(1, "NodeLost"), (2, None)]
    assert bench.names == ["first-head-2-0", "first-trainer-2-0"]


def test_07_a_driver_that_lost_a_lost_nodes_pod_is_not_counted() -> None:
    bench = Bench().training().change(TRAINER, deleting=True, disruption="NodeLost", ready=False)
    bench.finish(HEAD, 30, "DistributedFault", "An engine is gone.").settle()
    assert bench.attempts[0] == (1, "NodeLost")
    assert bench.status.restarts_counted == 0


def test_07_a_driver_that_ends_long_before_its_lost_pods_node_is_known_is_not_counted() -> None:
    """The head says 30 at once. Minutes later nothing has ended the trainer that it lost, and only force does."""
    bench = Bench(slow_deletion=True).training().finish(HEAD, 30, "DistributedFault", "An engine is gone.").settle()
    bench.settle(30)
    assert bench.attempts == [(1, "DistributedFault")]
    assert bench.settle(24).forced == []
    bench.settle(2)
    assert bench.forced == [TRAINER]
    bench.settle()
    assert bench.attempts == [(1, "NodeLost"), (2, None)]
    assert bench.status.restarts_counted == 0


def test_07_a_workers_30_is_not_counted_when_the_heads_node_is_lost() -> None:
    bench = Bench(slow_deletion=True).training().finish(TRAINER, 30, "DistributedFault", "No head.").settle()
    bench.settle(20)
    assert bench.deleted == [HEAD]
    bench.settle(91)
    assert bench.attempts[0] == (1, "NodeLost")
    assert bench.status.restarts_counted == 0


def test_07_a_pod_that_the_cluster_takes_after_its_driver_ended_explains_the_end() -> None:
    bench = Bench(slow_deletion=True).training().finish(HEAD, 30, "DistributedFault", "An engine is gone.").settle()
    bench.change(TRAINER, disruption="NodeLost").settle()
    bench.vanish(TRAINER).settle(60)
    assert bench.attempts[0] == (1, "NodeLost")
    assert bench.status.restarts_counted == 0


def test_07_a_driver_whose_pods_end_in_time_is_counted() -> None:
    bench = Bench().training().finish(HEAD, 30, "DistributedFault", "An engine is gone.").settle()
    bench.settle(40)
    assert bench.attempts[0] == (1, "DistributedFault")
    assert bench.status.restarts_counted == 1


def test_08_the_heads_memory_ends_the_attempt() -> None:
    bench = Bench().training().finish(HEAD, 137, out_of_memory=True).settle()
    assert bench.attempts[0] == (1, "OOMKilled")
    assert "spec.topology.head.resources.memory" in (bench.status.attempts[0].message or "")
    assert bench.status.restarts_counted == 1


def test_09_a_trainers_memory_is_counted() -> None:
    bench = Bench().training().finish(TRAINER, 137, out_of_memory=True).settle()
    assert bench.attempts[0] == (1, "OOMKilled")
    assert bench.status.attempts[0].role == "trainer"
    assert bench.status.restarts_counted == 1


def test_10_image_that_can_not_be_pulled() -> None:
    bench = Bench().settle()
    trouble = 'ImagePullBackOff: Back-off pulling image "trainer:1"'
    bench.change(TRAINER, trouble=trouble, trouble_reason="ImagePullBackOff").settle()
    assert bench.says("PodsReady") == ("False", "ContainerWaiting")
    said = f"{TRAINER}: {trouble}. Correct the image or its pull secret; a changed spec takes effect immediately."
    assert bench.condition("PodsReady").message == said
    bench.settle(1800)
    assert bench.attempts[0] == (1, "StartTimeout")
    assert "ImagePullBackOff" in (bench.status.attempts[0].message or "")
    assert bench.status.restarts_counted == 0


def test_10_a_new_image_is_tried_at_once() -> None:
    bench = Bench().settle().change(TRAINER, trouble="ImagePullBackOff", trouble_reason="ImagePullBackOff")
    image = {"podTemplate": {"spec": {"containers": [{"name": "dapo", "image": "trainer:2"}]}}}
    bench.edit(topology={"trainer": image}).settle()
    assert bench.attempts == [(1, "SpecChanged"), (2, None)]
    assert bench.status.restarts_counted == 0


def seconds_to_the_next_attempt(bench: Bench) -> float:
    """Let a minute or more pass, second by second, until the next attempt starts."""
    began = bench.now
    while bench.status.attempts[-1].number == 1:
        assert bench.now < began + 3600
        bench.step(1)
    return bench.now - began


def test_the_next_attempt_starts_within_a_minute_of_the_loss_of_a_node() -> None:
    """The driver is gone, so nothing is left for which its workers would need their grace period of 330 seconds."""
    bench = Bench(slow_deletion=True, grace=330).training()
    bench.finish(HEAD, 30, "DistributedFault", "An engine is gone.")
    assert seconds_to_the_next_attempt(bench) <= 60
    assert bench.attempts[0] == (1, "NodeLost")


def test_a_lost_node_that_the_control_plane_noticed_first() -> None:
    """The taint manager has already deleted the pod, with the pod's whole grace period."""
    bench = Bench(slow_deletion=True, grace=330).training()
    bench.change(TRAINER, deleting=True, delete_by=bench.now + 330, disruption="NodeLost", ready=False)
    bench.settle().vanish(HEAD)
    assert seconds_to_the_next_attempt(bench) <= 60


def test_a_head_on_a_lost_node_is_not_waited_for() -> None:
    bench = Bench(slow_deletion=True, grace=330).training()
    bench.change(HEAD, deleting=True, delete_by=bench.now + 330, disruption="NodeLost", ready=False)
    assert seconds_to_the_next_attempt(bench) <= 60


def test_a_driver_that_found_itself_hanging_has_stalled() -> None:
    """Its workers get time to write their stacks, not the time of a checkpoint."""
    message = "The trainer hangs: 'starting Ray' has lasted for 300 s."
    bench = Bench(slow_deletion=True, grace=330).training().finish(HEAD, 137, "Stalled", message).settle()
    assert bench.says("Stalled") == ("True", "Stalled")
    assert bench.pods[TRAINER].delete_by == bench.now + 30
    bench.vanish(TRAINER).settle()
    assert (bench.attempts[0], bench.status.restarts_counted) == ((1, "Stalled"), 1)
