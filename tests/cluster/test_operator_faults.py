"""The operator while its process and its way to the API server suffer.

Every test is the same life of a job: it starts, a trainer dies of 137 and the job restarts, and it is deleted. A fault
comes at a moment of it. Afterwards the chronicle must hold no broken invariant, nothing of the job may be left, and the
operator must have fallen silent.
"""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from operator_stage import NAME, PATIENCE, PODS, Stage, falls_silent, stage
from patience import patient
from servers.fault_proxy import Fault, Rule, every
from servers.kubernetes import Cluster
from servers.kubernetes_pods import pods_of

# Writes of a quiet life: 3 pods twice, 6 support objects, 9 states, 6 events, deletions, finalizers; the rest is slack.
QUIET_WRITES = 60
SIDE_BY_SIDE = 4

RULES: dict[str, Rule] = {
    "answers of creations are lost": every(Fault(lost=True, after=True), method="POST", times=8),
    "answers of status writes are lost": every(Fault(lost=True, after=True), method="PUT", times=4),
    "creations are lost": every(Fault(lost=True), method="POST", times=8),
    "500": every(Fault(code=500), times=10),
    "429 storm": every(Fault(code=429, retry_after=1), times=15),
    "slow": every(Fault(delay=0.2)),
}


def lives_quietly(at: Stage) -> None:
    """From creation over a restart to deletion, with no more writes than a life needs."""
    at.life.create()
    at.life.trains(1)
    at.life.kill_trainer()
    at.life.trains(2)
    falls_silent(at.proxy)
    at.life.delete()
    falls_silent(at.proxy)
    assert sum(seen.writes for seen in at.proxy.log) <= QUIET_WRITES


def among_faulty_answers(at: Stage, rule: Rule) -> None:
    at.proxy.rule = rule
    lives_quietly(at)
    assert at.operator.get("/healthz") == (200, "ok\n")
    assert 'dapo_operator_restarts_total{reason="Killed"} 1.0' in at.operator.get("/metrics")[1]


def killed(at: Stage) -> None:
    at.operator.kill()
    at.operator.start()


def paused(at: Stage) -> None:
    at.operator.signal(signal.SIGSTOP)
    time.sleep(2)
    at.operator.signal(signal.SIGCONT)


def partitioned(at: Stage) -> None:
    at.proxy.partition()
    time.sleep(2)
    at.proxy.heal()


def server_killed(at: Stage) -> None:
    at.cluster.kill_apiserver()
    at.cluster.restart()


def server_paused(at: Stage) -> None:
    at.cluster.pause()
    time.sleep(2)
    at.cluster.resume()


def with_blows_at_its_turns(at: Stage, blow: Callable[[Stage], None]) -> None:
    """One when the attempt is on record and its pods are not all there; one while an attempt ends."""
    at.life.create()
    at.life.recorded(1)
    blow(at)
    at.life.trains(1)
    at.life.kill_trainer()
    blow(at)
    at.life.trains(2)
    falls_silent(at.proxy)
    at.life.delete()
    falls_silent(at.proxy)


def unheard(at: Stage) -> None:
    """Watches fall silent, a pod fails and another is deleted, and then the watches get 410."""
    at.life.create()
    at.life.trains(1)
    at.proxy.silence_watches()
    at.life.kill_trainer()
    (rollout,) = pods_of(at.cluster.api, at.life.namespace, job=NAME, role="rollout")
    at.cluster.api.delete(f"/api/v1/namespaces/{at.life.namespace}/pods/{rollout['metadata']['name']}")
    time.sleep(0.5)
    assert at.life.status()["phase"] == "Training"
    at.proxy.expire_watches()
    at.life.trains(2)
    at.life.delete()


def told_twice_and_backwards(at: Stage) -> None:
    """Every watch does so from the job's first moment to its last."""
    at.proxy.stutters = True
    at.proxy.expire_watches()
    lives_quietly(at)


def deleted_while_nobody_looks(at: Stage) -> None:
    at.life.create()
    at.life.trains(1)
    at.operator.kill()
    at.cluster.api.delete(at.life.path)
    time.sleep(0.5)
    assert len(at.life.pods()) == PODS, "the operator's finalizer holds the job"
    at.operator.start()
    at.life.nothing_is_left()


def followed_by_the_other(at: Stage, blow: str) -> None:
    """The leading one of two replicas is hit, and the other one brings the job through."""
    first = at.operator
    at.life.create()
    at.life.trains(1)
    assert not at.proxies[1].writes_since(0), "the second replica writes nothing"
    leading = ["dapo_operator_leader 1.0" in operator.get("/metrics")[1] for operator in at.operators]
    assert leading == [True, False]
    began = time.time()
    if blow == "killed":
        first.kill()
    elif blow == "stopped":
        assert first.stop() == 0
    elif blow == "paused":
        first.signal(signal.SIGSTOP)
    else:
        at.proxy.partition()
    at.life.kill_trainer()
    took = at.followed("r1")
    at.cluster.wait_until(lambda: at.proxies[1].writes_since(began), "the second replica acts", PATIENCE)
    taken = time.time()
    if blow == "paused":
        first.signal(signal.SIGCONT)
    at.proxy.heal()
    at.life.trains(2)
    acted = at.proxies[1].writes_since(began)[0].at - began
    print(f"replica {blow}: the lease was taken after {took:.1f} s, and acted upon after {acted:.1f} s")
    assert took < (5 if blow == "stopped" else 20)
    if blow in ("paused", "partitioned"):
        assert first.process.wait(patient(30)) == 1, "a replica that lost the lease ends"
    assert not at.proxy.writes_since(taken), "and writes nothing more"
    at.life.delete()


def two_at_once(at: Stage) -> None:
    """Two operators without an election, as after a mistake in their settings: they disturb each other and no job."""
    at.life.create()
    at.life.trains(1)
    at.life.kill_trainer()
    at.life.trains(2)
    falls_silent(*at.proxies)
    at.life.delete()
    falls_silent(*at.proxies)
    assert all(proxy.writes_since(0) for proxy in at.proxies)


def hours_off(at: Stage) -> None:
    """The API server's clock is five hours ahead of the operator's machine, and then is put right."""
    at.proxy.skew = 5 * 3600
    at.life.create()
    at.life.trains(1)
    at.proxy.skew = 0
    at.life.kill_trainer()
    at.life.trains(2)
    assert at.life.status()["restartsCounted"] == 1
    falls_silent(at.proxy)
    at.life.delete()


@dataclass(frozen=True)
class Scene:
    """What is played, and before how many replicas."""

    play: Callable[[Stage], None]
    replicas: int = 1
    elected: bool = True


# Each has an operator of its own and most of its time is waiting, so several go on side by side.
SCENES: dict[str, Scene] = {
    **{
        f"replica {blow}": Scene(partial(followed_by_the_other, blow=blow), 2)
        for blow in ("paused", "partitioned", "killed", "stopped")
    },
    **{name: Scene(partial(among_faulty_answers, rule=rule)) for name, rule in RULES.items()},
    **{blow.__name__: Scene(partial(with_blows_at_its_turns, blow=blow)) for blow in (killed, paused, partitioned)},
    "unheard": Scene(unheard),
    "told twice and backwards": Scene(told_twice_and_backwards),
    "two at once": Scene(two_at_once, 2, elected=False),
    "hours off": Scene(hours_off),
    "deleted while nobody looks": Scene(deleted_while_nobody_looks),
}


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[None]"]]:
    """The scenes that this run of pytest asks for, begun together."""

    folder = tmp_path_factory.mktemp("scenes")

    def play(name: str) -> None:
        namespace, scene = f"scene-{name.replace(' ', '-')}", SCENES[name]
        with stage(cluster, namespace, folder / namespace, scene.replicas, scene.elected) as at:
            scene.play(at)

    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    asked = [call.params["scene"] for call in calls if "scene" in call.params]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {name: pool.submit(play, name) for name in asked}


@pytest.mark.parametrize("scene", SCENES)
def test_a_life_goes_on(scene: str, played: dict[str, "Future[None]"]) -> None:
    played[scene].result()


@pytest.mark.parametrize("blow", [server_killed, server_paused], ids=["killed", "paused"])
def test_a_life_goes_on_when_the_api_server_suffers(
    blow: Callable[[Stage], None], cluster: Cluster, tmp_path: Path
) -> None:
    """By itself: all scenes share the API server."""
    with stage(cluster, blow.__name__.replace("_", "-"), tmp_path) as at:
        with_blows_at_its_turns(at, blow)
