"""Everything is killed once while the job trains, and it goes on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e_installation import GONE, JOB, NAMESPACE, TEAM, Installation
from spooled import STORED, Point, spooled_points
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from dapo_core.db import open_reader

OUTAGE_SECONDS = 60


@pytest.mark.parametrize("component", [pytest.param("operator", marks=pytest.mark.main_story), "dashboard"])
def test_a_part_without_state_is_killed(platform: Installation, component: str) -> None:
    attempt = platform.attempt()
    platform.kubectl("--namespace", NAMESPACE, *GONE, f"--selector=app.kubernetes.io/component={component}")
    platform.goes_on(f"the {component} was killed", 240)
    assert platform.attempt() == attempt


@pytest.mark.main_story
def test_postgres_is_killed(platform: Installation) -> None:
    attempt = platform.attempt()
    platform.kubectl("--namespace", NAMESPACE, *GONE, "dapo-postgres-0")
    platform.goes_on("Postgres was killed")
    assert platform.attempt() == attempt


@pytest.mark.parametrize("store", ["postgres", "minio"])
def test_a_store_is_away_for_a_minute(platform: Installation, store: str) -> None:
    attempt, name = platform.attempt(), f"statefulset/dapo-{store}"
    platform.kubectl("--namespace", NAMESPACE, "scale", name, "--replicas=0")
    platform.wait(f"no {store}", lambda: not store_pods(platform, store), 120)
    time.sleep(OUTAGE_SECONDS)  # the outage itself
    platform.kubectl("--namespace", NAMESPACE, "scale", name, "--replicas=1")
    platform.kubectl("--namespace", NAMESPACE, "rollout", "status", name, "--timeout=180s", seconds=200)
    platform.goes_on(f"{store} was away")
    assert platform.attempt() == attempt, "an outage of a minute cost an attempt"


def store_pods(platform: Installation, store: str) -> list[object]:
    found: list[object] = platform.get("pods", namespace=NAMESPACE, labels=f"app.kubernetes.io/component={store}")[
        "items"
    ]
    return found


@pytest.mark.main_story
def test_every_point_of_the_spool_is_stored_once(platform: Installation, tmp_path: Path) -> None:
    """The head's own disk is the oracle: what it noted through all this is in Postgres, and no attempt has more."""
    head, attempt, run = platform.pod_of("head"), platform.attempt(), platform.status()["runId"]
    noted = f"{head}:/var/lib/dapo/attempt-{attempt}/spool"
    platform.kubectl("--namespace", TEAM, "cp", noted, str(tmp_path / "spool"))
    spooled = spooled_points([tmp_path / "spool"])
    assert spooled and len(spooled) == len(set(spooled)), "a point is in the spool twice"
    until = max(step for _, step, *_ in spooled)
    with platform.stores() as secret:
        engine = create_engine(secret["DAPO_METADATA_URL"], poolclass=NullPool)

        def stored() -> set[Point]:
            with engine.connect() as connection:
                rows = connection.execute(
                    text(f"{STORED} where run_id = :run and attempt = :attempt and step <= :until"),
                    {"run": run, "attempt": attempt, "until": until},
                )
                return {(name, step, number, value, flag) for name, step, number, value, flag in rows}

        platform.wait("all of it in Postgres", lambda: stored() >= set(spooled), 60)
        assert stored() == set(spooled)


def test_a_killed_rollout_is_replaced_and_the_attempt_goes_on(platform: Installation) -> None:
    attempt = platform.attempt()

    def replaced() -> bool:
        status = platform.status()
        return bool(status.get("rolloutLives")) and status.get("pods") == "4/4"

    platform.kubectl("--namespace", TEAM, *GONE, platform.pod_of("rollout"))
    platform.wait("its next life serves", replaced, 300)
    platform.goes_on("a rollout was killed")
    assert platform.attempt() == attempt, "the loss of a rollout cost an attempt"


@pytest.mark.parametrize("role", ["trainer", "head"])
def test_a_pod_of_the_job_is_killed(platform: Installation, role: str) -> None:
    platform.loses(role)


def test_suspend_and_resume(platform: Installation) -> None:
    platform.patch({"suspend": True})
    platform.wait("no pods", lambda: not platform.pods(), 300)
    run = platform.status()["runId"]
    with platform.stores() as secret:
        saved = open_reader(secret["DAPO_METADATA_URL"]).checkpoints(run)
    newest = max(each.step for each in saved if each.state == "committed")
    platform.patch({"suspend": False, "runPolicy": {"restart": "InPlace"}})  # for the test below
    platform.wait("pods again", lambda: len(platform.pods()) == 4, 120)
    assert platform.status()["attempts"][-1]["fromStep"] == newest
    platform.goes_on("the job was resumed")


def test_a_trainer_stays_when_the_driver_is_killed(platform: Installation) -> None:
    """Its pod serves the next attempt with other processes; head and rollouts are new pods."""
    trainer, others = the_trainer(platform), set(platform.pods())
    attempt = platform.attempt()
    # The first process of the pod stays, and sees how its program ended.
    kill = "import psutil; [program.kill() for program in psutil.Process(1).children()]"
    platform.kubectl("--namespace", TEAM, "exec", platform.pod_of("head"), "--", "python", "-c", kill)
    platform.wait("the next attempt", lambda: platform.attempt() == attempt + 1, 120)
    platform.goes_on("the driver was killed")
    assert the_trainer(platform) == trainer
    assert set(platform.pods()) & others == {trainer[0]}
    assert platform.status()["attempts"][-1]["trainersCreatedIn"] == [attempt]


def the_trainer(platform: Installation) -> tuple[str, str]:
    """Name and UID of its pod."""
    name = platform.pod_of("trainer")
    return name, platform.pods()[name]["metadata"]["uid"]


def test_kubectl_waits_after_an_edit(platform: Installation) -> None:
    """A condition whose observedGeneration stays behind would never be seen."""
    platform.patch({"runPolicy": {"maxRestarts": 50}})
    platform.kubectl("--namespace", TEAM, "wait", f"dapojob/{JOB}", "--for=condition=Training", "--timeout=100s")


def test_a_drained_node_is_left_with_a_checkpoint(platform: Installation) -> None:
    """The cluster may have one node: then the job waits until it takes pods again."""
    attempt, counted = platform.attempt(), platform.status().get("restartsCounted", 0)
    node = platform.pods()[platform.pod_of("head")]["spec"]["nodeName"]
    platform.kubectl("cordon", node)
    try:
        platform.wait("the next attempt", lambda: platform.attempt() == attempt + 1, 600)
    finally:
        platform.kubectl("uncordon", node)
    ended = platform.status()["attempts"][-2]
    # Pods that end and go at once are not always seen with their exit code; `toStep` below shows that it was saved.
    assert (ended["reason"], ended["counted"]) == ("Drained", False)
    assert platform.status().get("restartsCounted", 0) == counted
    platform.goes_on("the node was drained")
    assert platform.status()["attempts"][-1]["fromStep"] == ended["toStep"], "a drain costs no step"


def test_b31_the_log_of_an_attempt_whose_pods_are_gone(platform: Installation) -> None:
    with platform.stores() as secret:
        # Ended ones end with what our driver said; the last lines of one that trains may all be verl's.
        for attempt, role, says in (
            (1, "head", "dapo_trainer"),
            (1, "trainer", "dapo_trainer"),
            (platform.attempt(), "head", "\n"),
        ):
            command = [str(Path(sys.executable).with_name("dapo")), "logs", JOB, "--namespace", TEAM, "--role", role]
            printed = subprocess.run(
                [*command, f"--attempt={attempt}", "--tail=400"],
                env={**os.environ, **secret, "KUBECONFIG": str(platform.kubeconfig)},
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
                check=True,
            )
            assert says in printed.stdout, (attempt, role, printed.stdout[-2000:])
