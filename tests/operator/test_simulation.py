"""Fifty jobs, thirty minutes, whatever can go wrong: what must never be, never is, and in the end all is as it should
be. DAPO_SEED gives other faults, DAPO_SIMULATED_JOBS more jobs, DAPO_SIMULATED_DAYS days of as many minutes of faults
each: `make simulate` runs 30 days of 200 jobs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_kube import Object
from patience import patient
from simulated_cluster import NAMESPACE, Simulation
from simulated_queues import QUOTA

SEED = int(os.environ.get("DAPO_SEED") or 2026)
JOBS = int(os.environ.get("DAPO_SIMULATED_JOBS") or 50)
DAYS = int(os.environ.get("DAPO_SIMULATED_DAYS") or 1)
SETTLED = {"Training", "Suspended", "Succeeded", "Failed"}


def test_thirty_minutes_of_faults() -> None:
    print(f"DAPO_SEED={SEED}")
    simulation = Simulation(SEED, jobs=JOBS)
    for day in range(DAYS):
        if day:
            simulation.rest(hours=23.5)
        for _ in range(1800):
            simulation.step()
        print(f"day {day + 1}: {simulation.deaths} operators died, {simulation.freezes} statuses were unreadable")
    assert simulation.deaths > 3
    assert simulation.freezes > 5
    assert simulation.pods.hangs > 0
    _settle(simulation)
    writes = dict(simulation.kube.writes)
    simulation.quieten(400)
    assert simulation.kube.writes == writes, "a settled job is written to"
    _nothing_left_behind(simulation)


def _settle(simulation: Simulation) -> None:
    """Within 1,000 seconds without faults, all jobs are as they should be."""
    for _ in range(20):
        simulation.quieten(50)
        if not simulation.nodes.any_down and all(_is_settled(*each, simulation) for each in simulation.statuses()):
            break
    _settled(simulation)
    assert simulation.queues.phantoms(simulation.pods.own()) == []


def _is_settled(raw: Object, phase: str, simulation: Simulation) -> bool:
    """A job of Kueue's may wait while others have all of the quota."""
    trains = [raw for raw, phase in simulation.statuses() if phase == "Training" and _is_kueues(raw)]
    restless = simulation.pods.hung(raw["metadata"]["name"]) or not _has_its_rollouts(raw)
    if _degraded(raw) or (phase == "Training" and restless):
        return False
    return phase in SETTLED or (phase == "Pending" and _is_kueues(raw) and len(trains) == QUOTA)


def _is_kueues(raw: Object) -> bool:
    return bool(raw["spec"]["runPolicy"].get("gang", {}).get("scheduler") == "kueue")


def _has_its_rollouts(raw: Object) -> bool:
    """Whether it says so; changes of the number alone are written with a delay. With Kueue an attempt gets no more than
    was admitted with it, and an invalid spec leaves it as it is."""
    wanted = raw["spec"]["topology"]["rollout"]["replicas"]
    kept = _is_kueues(raw) or _says(raw, "SpecAccepted", "False")
    return kept or int(raw["status"]["rolloutReplicas"]) == wanted


def _degraded(raw: Object) -> bool:
    return _says(raw, "RolloutsDegraded", "True")


def _says(raw: Object, kind: str, status: str) -> bool:
    conditions = raw.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == (kind, status) for each in conditions)


def _stays(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _settled(simulation: Simulation) -> None:
    for raw, phase in simulation.statuses():
        name, status = raw["metadata"]["name"], raw["status"]
        assert not _degraded(raw), (name, status["conditions"])
        assert _is_settled(raw, phase, simulation), (name, phase, status["conditions"])
        assert status["observedGeneration"] == raw["metadata"]["generation"], name
        own = [pod for pod in simulation.pods.own() if pod["metadata"]["labels"]["dapo.io/job"] == name]
        # Ended rollouts are kept for their logs, and replaced before they are gone.
        pods = [pod for pod in own if phase != "Training" or _stays(pod)]
        wanted = 0
        if phase == "Training":
            wanted = 2 + int(status["rolloutReplicas"])
            assert _has_its_rollouts(raw), name
        assert len(pods) == wanted or phase == "Failed", (name, phase, [pod["metadata"]["name"] for pod in pods])
        assert phase in ("Suspended", "Failed") or not raw["spec"].get("suspend"), name
        protected = phase == "Training" and raw["spec"]["runPolicy"].get("disruption") == "Deny"
        assert protected == (("poddisruptionbudgets", NAMESPACE, name) in simulation.kube.objects), (name, phase)
    assert simulation.pods_that_should_move() == []


def _nothing_left_behind(simulation: Simulation) -> None:
    for raw in simulation.kube.of_kind("DAPOJob"):
        simulation.kube.mark_deleted(raw)
    simulation.quieten(300)
    assert [name for _, _, name in simulation.kube.objects if not name.startswith("debug-")] == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_few_jobs_from_known_seeds(seed: int) -> None:
    simulation = Simulation(seed, jobs=5)
    for _ in range(600):
        simulation.step()
    _settle(simulation)
    _nothing_left_behind(simulation)


REPEATED = """
import hashlib, json
from simulated_cluster import Simulation
simulation = Simulation(1, jobs=4)
for _ in range(600):
    simulation.step()
# The tokens in Secrets are drawn by the operating system.
events = json.dumps([event for event in simulation.kube.events if event[2]["kind"] != "Secret"], sort_keys=True)
print(simulation.deaths, len(simulation.kube.events), hashlib.sha256(events.encode()).hexdigest())
"""


def test_a_seed_repeats_a_run() -> None:
    """Also with another order of the elements of sets, as in another process."""
    support = str(Path(__file__).parents[1] / "support")
    runs = [
        subprocess.run(
            [sys.executable, "-c", REPEATED],
            env={**os.environ, "PYTHONPATH": support, "PYTHONHASHSEED": number},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # of the job that runs into a bug
            text=True,
            check=True,
            timeout=patient(120),
        )
        for number in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_end_of_a_rollout_raises_the_number_of_the_attempt(seed: int) -> None:
    """Each rollout of five jobs is killed, preempted or drained, or its node is lost, every three minutes, and people
    scale them; operators die meanwhile."""
    simulation = Simulation(seed, jobs=5, only_rollouts=True)
    simulation.quieten(60)
    for _ in range(1200):
        simulation.step()
    replaced = len(simulation.invariants.lives)
    assert replaced > 50
    _settle(simulation)
    for raw, phase in simulation.statuses():
        assert (phase, [attempt["number"] for attempt in raw["status"]["attempts"]]) == ("Training", [1])
    _nothing_left_behind(simulation)


@pytest.mark.parametrize("seed", [1, 3])
def test_trainers_stay_for_attempt_after_attempt(seed: int) -> None:
    """A driver ends every half minute, of one of five jobs; operators die meanwhile."""
    simulation = Simulation(seed, jobs=5, only_rollouts=True)
    simulation.quieten(60)
    for second in range(900):
        if second % 30 == 0:
            simulation.pods.end_a_driver()
        simulation.step()
    assert simulation.pods.stayed > 2
    _settle(simulation)
    ends = {attempt.get("reason") for raw, _ in simulation.statuses() for attempt in raw["status"]["attempts"]}
    assert "StartTimeout" not in ends, "a driver waited for rollouts that were not to come"
    _nothing_left_behind(simulation)
