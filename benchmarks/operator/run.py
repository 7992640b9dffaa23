"""What an operator costs and how soon it acts, on a real API server with fake nodes.

    PYTHONPATH=tests/support python benchmarks/operator/run.py [--jobs 100] [--namespaces 1] [--pods 10] [--json FILE]
    ... --store [--step-seconds 60]                     with a Postgres in which all jobs make progress
    ... --queues                                        with Kueue, whose queues have room for all jobs
    ... --phases copies idle --copies 9                 ten times as many running jobs as are created
    ... --kuberay BINARY --kuberay-crds FOLDER          both, one after the other

One run: create all jobs, wait until every pod exists, every job is ready, the operator is quiet
and Kubernetes' own controllers rest; then the phases, in the order in which they are named.
Everything is on this machine, so CPU seconds are more meaningful than durations.
"""

import argparse
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import phases
from audit_log import by_verb
from copied_jobs import copies
from servers.ports import free_port
from stage import Figures, Stage
from subjects import Subject, kuberay, ours
from tenants import tenants

PHASES: Final[dict[str, Callable[[Stage], Figures]]] = {
    "idle": phases.idle,
    "churn": phases.churn,
    "repair": phases.repair,
    "tenants": tenants,
    "copies": copies,
    "restart": phases.restart,
}
USUAL: Final = ("idle", "churn", "restart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--namespaces", type=int, default=1, help="number of namespaces for the jobs")
    parser.add_argument("--pods", type=int, default=10, help="pods of each job, 3 or more")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--deletes", type=int, default=50, help="pods to delete, two per second")
    parser.add_argument("--idle", type=float, default=60, help="seconds to watch an idle operator")
    parser.add_argument(
        "--store", action="store_true", help="a metadata store; jobs make progress while idle and churn"
    )
    parser.add_argument("--queues", action="store_true", help="Kueue admits the jobs")
    parser.add_argument("--step-seconds", type=float, default=60, help="between two steps of a job")
    parser.add_argument("--copies", type=int, default=9, help="copies of every job, in the phase of that name")
    parser.add_argument("--settle", type=float, default=330, help="seconds in which a repair's writes are counted")
    parser.add_argument("--rate", type=float, default=200, help="our operator's requests per second")
    parser.add_argument("--limit", type=float, default=1200, help="seconds until a phase counts as failed")
    parser.add_argument("--phases", nargs="*", default=list(USUAL), choices=list(PHASES), help="after the creation")
    parser.add_argument("--kuberay", type=Path, help="KubeRay's operator binary")
    parser.add_argument("--kuberay-crds", type=Path, help="folder with KubeRay's CRDs")
    parser.add_argument("--kuberay-options", nargs="*", default=[], help="more flags for it, without the dashes")
    parser.add_argument("--only-kuberay", action="store_true")
    parser.add_argument("--profile", type=Path, help="py-spy's records of our operator, one of each phase")
    parser.add_argument("--keep", action="store_true", help="leave the logs of the run in their temporary folder")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _time_is_up)
    subjects = [] if options.only_kuberay else [ours(free_port(), options.rate, options.pods, options.queues)]
    if options.kuberay:
        flags = [f"--{flag}" for flag in options.kuberay_options]
        subjects.append(kuberay(free_port(), options.kuberay, options.kuberay_crds, flags, options.pods))
    found = {subject.name: measure(subject, options) for subject in subjects}
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(subject: Subject, options: argparse.Namespace) -> Figures:
    """Every phase of one operator; the figures of all."""
    stage = Stage(subject, options)
    try:
        stage.start()
        found: Figures = {"jobs": len(stage.jobs), "pods_per_job": subject.pods, "namespaces": len(stage.spaces)}
        try:
            for name, phase in (("create", phases.create), *((name, PHASES[name]) for name in options.phases)):
                with stage.profiled(name):
                    figures = phase(stage)
                stage.say(figures)
                found |= figures
        except TimeoutError as error:
            # What it cost so far is worth knowing, too.
            found |= {"stopped": str(error), "pods": stage.observer.alive, "ready": len(stage.observer.ready)}
            requests = stage.audit.read()
            found |= {"cpu_s": stage.meter.all_cpu(), "requests_per_job": len(requests) / len(stage.jobs)}
            found |= {"requests": dict(by_verb(requests).most_common())}
        found["operator_ended"] = stage.ended
        return found | {"peak_mib": {name: peak / 2**20 for name, peak in stage.meter.peak.items()}}
    finally:
        stage.stop()


def _time_is_up(*_: object) -> None:
    """Still show what was measured so far."""
    raise TimeoutError("stopped by SIGTERM")


def show(found: dict[str, Figures]) -> None:
    """A line a figure, a column a subject."""
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    print(f"{'':<34}" + "".join(f"{subject:>26}" for subject in found))
    for name in names:
        values = [figures.get(name) for figures in found.values()]
        if any(isinstance(value, dict) for value in values):
            keys = dict.fromkeys(key for value in values for key in value or {})
            for key in keys:
                print(f"{name + ': ' + key:<50}" + "".join(f"{_text((value or {}).get(key)):>18}" for value in values))
        else:
            print(f"{name:<50}" + "".join(f"{_text(value):>18}" for value in values))


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
