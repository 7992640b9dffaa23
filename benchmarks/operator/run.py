"""What an operator costs and how soon it acts, on a real API server with fake nodes.

    PYTHONPATH=tests/support python benchmarks/operator/run.py [--jobs 100] [--namespaces 1] [--pods 10] [--json FILE]
    ... --store [--step-seconds 60]                     with a Postgres in which all jobs make progress
    ... --kuberay BINARY --kuberay-crds FOLDER          both, one after the other

One run: create all jobs, wait until every pod exists, every job is ready, the operator is quiet
and Kubernetes' own controllers rest; idle; pods deleted one by one; kill -9, a pod deleted meanwhile, and the restart.
Everything is on this machine, so CPU seconds are more meaningful than durations.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit_log import POLICY, AuditLog, by_verb
from observer import Observer, percentiles
from process_usage import Meter, spent, wait_until
from reported_progress import Training
from servers.kubernetes import Cluster
from servers.ports import free_port
from servers.process import Process
from subjects import Subject, environment, kuberay, ours

Figures = dict[str, Any]
QUIET_SECONDS = 3.0
# Kubernetes' own controllers are behind by minutes when a thousand jobs are ready; they rest when they use less of a
# processor than this for so many seconds.
RESTING_SHARE, RESTING_SECONDS = 0.1, 5.0
PHASES = ("idle", "churn", "restart")


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
    parser.add_argument("--step-seconds", type=float, default=60, help="between two steps of a job")
    parser.add_argument("--rate", type=float, default=200, help="our operator's requests per second")
    parser.add_argument("--limit", type=float, default=1200, help="seconds until a phase counts as failed")
    parser.add_argument("--phases", nargs="*", default=list(PHASES), choices=PHASES, help="after the creation")
    parser.add_argument("--kuberay", type=Path, help="KubeRay's operator binary")
    parser.add_argument("--kuberay-crds", type=Path, help="folder with KubeRay's CRDs")
    parser.add_argument("--kuberay-options", nargs="*", default=[], help="more flags for it, without the dashes")
    parser.add_argument("--only-kuberay", action="store_true")
    parser.add_argument("--profile", type=Path, help="py-spy's records of our operator, one of each phase")
    parser.add_argument("--keep", action="store_true", help="leave the logs of the run in their temporary folder")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _time_is_up)
    subjects = [] if options.only_kuberay else [ours(free_port(), options.rate, options.pods)]
    if options.kuberay:
        flags = [f"--{flag}" for flag in options.kuberay_options]
        subjects.append(kuberay(free_port(), options.kuberay, options.kuberay_crds, flags, options.pods))
    found = {subject.name: Run(subject, options).all() for subject in subjects}
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


@dataclass(frozen=True)
class Moment:
    """Durations use the monotonic clock; the audit log has wall-clock times."""

    wall: float
    steady: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(time.time(), time.monotonic())

    def seconds(self) -> float:
        """Since then."""
        return time.monotonic() - self.steady


class Run:
    """One operator on its own control plane."""

    def __init__(self, subject: Subject, options: argparse.Namespace) -> None:
        self.subject, self.options = subject, options
        self.folder = Path(tempfile.mkdtemp(prefix="dapo-bench-"))
        (self.folder / "policy.yaml").write_text(POLICY)
        self.audit = AuditLog(self.folder / "audit.log")
        flags = [f"--audit-policy-file={self.folder / 'policy.yaml'}", f"--audit-log-path={self.audit.path}"]
        self.cluster = Cluster(self.folder, apiserver_flags=flags, controllers=["*"])
        self.observer = Observer(self.cluster.api, subject)
        self.meter = Meter()
        self.operator: Process | None = None
        self.training = Training(options.step_seconds) if options.store and subject.name == "dapo" else None
        spaces = [f"bench-{index}" for index in range(options.namespaces)]
        self.jobs = [(spaces[index % len(spaces)], f"job-{index:04}") for index in range(options.jobs)]
        self.spaces = spaces

    @property
    def running(self) -> Process:
        """The operator's process. Raises RuntimeError before it was started."""
        if self.operator is None:
            raise RuntimeError("the operator has not been started")
        return self.operator

    def all(self) -> Figures:
        """Every phase; the figures of each."""
        try:
            self.prepare()
            found: Figures = {"jobs": len(self.jobs), "pods_per_job": self.subject.pods, "namespaces": len(self.spaces)}
            try:
                for phase in ("create", *self.options.phases):
                    with self.profiled(phase):
                        figures = getattr(self, phase)()
                    self.say(json.dumps(figures))
                    found |= figures
            except TimeoutError as error:
                # What it cost so far is worth knowing, too.
                found |= {"stopped": str(error), "pods": self.observer.alive, "ready": len(self.observer.ready)}
                requests = self.audit.read()
                found |= {"cpu_s": self.meter.all_cpu(), "requests_per_job": len(requests) / len(self.jobs)}
                found |= {"requests": dict(by_verb(requests).most_common())}
            return found | {"peak_mib": {name: peak / 2**20 for name, peak in self.meter.peak.items()}}
        finally:
            self.observer.stop()
            self.meter.stop()
            if self.operator:
                self.running.kill()
            self.cluster.stop()
            if self.training:
                self.training.close()
            if not self.options.keep:
                shutil.rmtree(self.folder, ignore_errors=True)

    def prepare(self) -> None:
        """The control plane, the nodes, the namespaces, and the operator at rest."""
        self.say("starting the control plane")
        cluster = self.cluster.start()
        for crd in self.subject.crds:
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            cluster.api.apply(f"{path}/{crd['metadata']['name']}", crd)
        cluster.add_nodes(self.options.nodes, gpus=1000)
        for space in self.spaces:
            cluster.namespace(space)
        kubeconfig = self.identity()
        env = environment(self.subject, kubeconfig)
        if self.training:
            env["DAPO_METADATA_URL"] = self.training.open()
        self.operator = Process(self.subject.name, self.subject.command, self.folder / "operator.log", env)
        self.operator.start()
        self.running.wait_until(lambda: self.holder() is not None, 60)
        own = (cluster.apiserver, cluster.etcd, cluster.controllers, cluster.scheduler, cluster.kwok)
        for process in (self.operator, *(each for each in own if each)):
            self.meter.watch(process.name, process.pid)
        self.meter.start()
        self.observer.start()
        wait_until(lambda: self.audit.quiet_for() > QUIET_SECONDS, "the operator is at rest", 120)

    def identity(self) -> Path:
        """A service account with all rights, so that the audit log distinguishes the operator from others."""
        api = self.cluster.api
        self.cluster.namespace("kube-system")
        api.apply("/api/v1/namespaces/kube-system/serviceaccounts/subject", _object("v1", "ServiceAccount", "subject"))
        binding = _object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "subject") | {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "subject", "namespace": "kube-system"}],
        }
        api.apply("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/subject", binding)
        return self.cluster.service_account_kubeconfig("kube-system", "subject")

    def holder(self) -> str | None:
        """Who has the operator's lease."""
        namespace, name = self.subject.lease
        leases = self.cluster.api.items(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
        found = [lease["spec"].get("holderIdentity") for lease in leases if lease["metadata"]["name"] == name]
        return found[0] or None if found else None

    def create(self) -> Figures:
        """All jobs at once."""
        self.say(f"creating {len(self.jobs)} jobs")
        rest, before, begun = self.meter.memory(self.subject.name), self.meter.all_cpu(), Moment.now()
        with ThreadPoolExecutor(8) as pool:
            posted = dict(zip(self.jobs, pool.map(self.post, self.jobs), strict=True))
        wanted = len(self.jobs) * self.subject.pods
        limit = self.options.limit
        self.running.wait_until(lambda: self.observer.alive >= wanted, limit)
        pods = begun.seconds()
        self.say(f"all pods exist after {pods:.1f} s")
        wait_until(lambda: len(self.observer.ready) >= len(self.jobs), "all jobs are ready", limit)
        ready = begun.seconds()
        self.say(f"all jobs are ready after {ready:.1f} s")
        wait_until(lambda: self.audit.quiet_for() > QUIET_SECONDS, "the operator is quiet", limit)
        cpu = spent(before, self.meter.all_cpu())
        requests = self.audit.since(begun.wall)
        last = [max(self.observer.pods[key].values()) - posted[key] for key in self.jobs]
        spread = [max(at.values()) - min(at.values()) for at in self.observer.pods.values()]
        return {
            "pods_exist_s": pods,
            "jobs_ready_s": ready,
            "controllers_rest_s": begun.seconds() + wait_until(self.rests, "the control plane rests", limit),
            "job_to_last_pod_s": percentiles(last),
            "first_to_last_pod_s": percentiles(spread),
            "create_cpu_s": cpu,
            "requests_per_job": len(requests) / len(self.jobs),
            "looks_per_job": self.looks() / len(self.jobs),
            "requests": dict(by_verb(requests).most_common()),
            "memory_at_rest_mib": rest,
            "memory_after_create_mib": self.meter.memory(self.subject.name),
        }

    def rests(self) -> bool:
        """Whether the controller manager and the scheduler are idle; takes a few seconds."""
        names = ("kube-controller-manager", "kube-scheduler")
        before = sum(map(self.meter.cpu, names))
        time.sleep(RESTING_SECONDS)
        return sum(map(self.meter.cpu, names)) - before < RESTING_SHARE * RESTING_SECONDS

    def looks(self) -> float:
        """How many times the operator reports to have reconciled a job."""
        port, name = self.subject.looks
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    def post(self, key: tuple[str, str]) -> float:
        """Create one job. Returns when."""
        at = time.monotonic()
        self.cluster.api.create(self.subject.path(key[0]), self.subject.make(key[1]))
        return at

    def idle(self) -> Figures:
        """Nothing happens."""
        self.train()
        self.say(f"idle for {self.options.idle:g} s")
        before, begun = self.meter.all_cpu(), Moment.now()
        time.sleep(self.options.idle)
        minutes = begun.seconds() / 60
        cpu = {name: seconds / minutes for name, seconds in spent(before, self.meter.all_cpu()).items()}
        requests = by_verb(self.audit.since(begun.wall))
        found = {"idle_cpu_s_per_minute": cpu, "idle_requests": dict(requests), "idle_s": self.options.idle}
        found["idle_memory_mib"] = self.meter.memory(self.subject.name)
        return found | ({"steps": self.training.steps} if self.training else {})

    def train(self) -> None:
        """All jobs make progress, if there is a store. The first reading of all runs is not part of what follows."""
        if self.training and not self.training.steps:
            self.say("the jobs make progress")
            jobs = self.cluster.api.items(self.subject.path(None))
            self.training.record(
                [(job["metadata"]["namespace"], job["metadata"]["name"], job["status"]["runId"]) for job in jobs]
            )
            self.training.go()
            training = self.training
            wait_until(lambda: training.steps >= len(self.jobs), "a step of each job", self.options.limit)
        elif self.training:
            self.training.go()

    def churn(self) -> Figures:
        """Pods deleted two per second: seconds until the first write about it, and until the job is ready."""
        keys = self.jobs[:: max(1, len(self.jobs) // self.options.deletes)][: self.options.deletes]
        self.train()
        self.say(f"deleting a pod of {len(keys)} jobs")
        before, begun = self.meter.all_cpu(), Moment.now()
        deleted = {}
        for key in keys:
            deleted[key] = self.delete_a_pod(key)
            time.sleep(0.5)
        wait_until(lambda: self.whole(keys, begun.steady), "the deleted pods are replaced", self.options.limit)
        if self.training:
            self.training.pause()
        wait_until(lambda: self.audit.quiet_for() > QUIET_SECONDS, "the operator is quiet", self.options.limit)
        requests = self.audit.since(begun.wall)
        acted = [self.first_write(key, at.wall) - at.wall for key, at in deleted.items()]
        whole = [self.last_pod(key) - at.steady for key, at in deleted.items()]
        return {
            "delete_to_action_s": percentiles(acted),
            "delete_to_whole_s": percentiles(whole),
            "churn_requests_per_delete": len(requests) / len(keys),
            "churn_requests": dict(by_verb(requests).most_common()),
            "churn_cpu_s": spent(before, self.meter.all_cpu()),
        }

    def delete_a_pod(self, key: tuple[str, str]) -> Moment:
        """Delete the job's last pod. Returns when."""
        path = f"/api/v1/namespaces/{key[0]}/pods"
        (*_, pod) = self.cluster.api.items(path, labelSelector=f"{self.subject.owner_label}={key[1]}")
        at = Moment.now()
        self.cluster.api.delete(f"{path}/{pod['metadata']['name']}")
        return at

    def whole(self, keys: Sequence[tuple[str, str]], since: float) -> bool:
        """Whether each job has all its pods again, and at least one newer than `since`."""
        return all(self.alive(key) == self.subject.pods and self.last_pod(key) > since for key in keys)

    def alive(self, key: tuple[str, str]) -> int:
        """Existing pods of the job."""
        return sum(uid not in self.observer.gone for uid in list(self.observer.pods[key]))

    def last_pod(self, key: tuple[str, str]) -> float:
        """When its newest pod existed."""
        return max(list(self.observer.pods[key].values()))

    def first_write(self, key: tuple[str, str], after: float) -> float:
        """When the operator first wrote anything about the job."""
        names = key[1], f"{key[1]}-"
        for request in self.audit.since(after):
            about = request.name == names[0] or request.name.startswith(names[1])
            # A pod that the server names, as KubeRay's, has no name in the request; then any of the namespace counts.
            if request.writes and request.namespace == key[0] and (about or not request.name):
                return request.at
        raise LookupError(f"the operator wrote nothing about {key}")

    def restart(self) -> Figures:
        """kill -9, a pod deleted meanwhile, and the restart: seconds until the operator acts on it."""
        key = self.jobs[len(self.jobs) // 2]
        self.say("kill -9, and the start")
        self.running.kill()
        self.delete_a_pod(key)
        before, begun = self.meter.all_cpu(), Moment.now()
        self.running.start()
        self.meter.watch(self.subject.name, self.running.pid)
        wait_until(lambda: self.whole([key], begun.steady), "the deleted pod is replaced", self.options.limit)
        acted = self.first_write(key, begun.wall) - begun.wall
        wait_until(lambda: self.audit.quiet_for() > QUIET_SECONDS, "the operator is quiet", self.options.limit)
        return {
            "restart_to_acting_s": acted,
            "restart_requests": dict(by_verb(self.audit.since(begun.wall)).most_common()),
            "restart_cpu_s": self.meter.cpu(self.subject.name) - before[self.subject.name],
            "restart_memory_mib": self.meter.memory(self.subject.name),
        }

    @contextmanager
    def profiled(self, phase: str) -> Iterator[None]:
        """py-spy on our operator, if requested."""
        if self.options.profile is None or self.subject.name != "dapo":
            yield
            return
        spy = Path(sys.executable).with_name("py-spy")
        flags = ["record", "-p", str(self.running.pid), "-d", "3600", "-f", "raw", "-r", "200"]
        record = self.options.profile.with_suffix(f".{phase}")
        process = Process("py-spy", [str(spy), *flags, "-o", str(record)], self.folder / "py-spy.log")
        process.start()
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGINT)  # it writes its record then

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.subject.name}: {text}", file=sys.stderr, flush=True)


def _time_is_up(*_: object) -> None:
    """Still show what was measured so far."""
    raise TimeoutError("stopped by SIGTERM")


def _object(api_version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


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
