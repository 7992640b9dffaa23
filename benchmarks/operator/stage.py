"""One operator on its own control plane with fake nodes, and everything that watches it."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit_log import POLICY, AuditLog
from observer import Observer
from process_usage import Meter, wait_until
from queues import Queues
from reported_progress import Training
from servers.kubernetes import Cluster
from servers.process import Process
from subjects import Subject, environment

Figures = dict[str, Any]
Key = tuple[str, str]
QUIET_SECONDS = 3.0
# Kubernetes' own controllers are behind by minutes when a thousand jobs are ready; they rest when they use less of a
# processor than this for so many seconds.
RESTING_SHARE, RESTING_SECONDS = 0.1, 5.0


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


class Stage:
    """The control plane, the operator on it, its jobs (namespace and name), and what is measured."""

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
        # How often it ended by itself, and was started again as a kubelet does; it loses its lease on a busy machine.
        self.ended, self._ends = 0, threading.Event()
        self._kept = threading.Event()
        self._kept.set()
        self.training = Training(options.step_seconds) if options.store and subject.name == "dapo" else None
        self.queues = Queues(self.cluster, self.folder) if options.queues and subject.name == "dapo" else None
        # Of one length, none the beginning of another: copies replace them wherever they occur.
        self.spaces = [f"bench-{index:03}" for index in range(options.namespaces)]
        self.jobs = [(self.spaces[index % len(self.spaces)], f"job-{index:04}") for index in range(options.jobs)]

    @property
    def running(self) -> Process:
        """The operator's process. Raises RuntimeError before it was started."""
        if self.operator is None:
            raise RuntimeError("the operator has not been started")
        return self.operator

    def start(self) -> None:
        """The control plane, the nodes, the namespaces, and the operator at rest."""
        self.say("starting the control plane")
        cluster = self.cluster.start()
        for crd in self.subject.crds:
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            cluster.api.apply(f"{path}/{crd['metadata']['name']}", crd)
        cluster.add_nodes(self.options.nodes, gpus=1000)
        for space in self.spaces:
            cluster.namespace(space)
        if self.queues:
            self.queues.open(self.spaces)
        env = environment(self.subject, self._identity())
        if self.training:
            env["DAPO_METADATA_URL"] = self.training.open()
        self.operator = Process(self.subject.name, self.subject.command, self.folder / "operator.log", env)
        self.operator.start()
        threading.Thread(target=self._keep_running, daemon=True).start()
        self.running.wait_until(lambda: self._holder() is not None, 60)
        own = (cluster.apiserver, cluster.etcd, cluster.controllers, cluster.scheduler, cluster.kwok)
        queue = self.queues.controller.process if self.queues else None
        for process in (self.operator, *(each for each in (*own, queue) if each)):
            self.meter.watch(process.name, process.pid)
        self.meter.start()
        self.observer.start()
        self.quiet()

    def stop(self) -> None:
        """End everything."""
        self._ends.set()
        self.observer.stop()
        self.meter.stop()
        if self.operator:
            self.running.kill()
        if self.queues:
            self.queues.controller.process.kill()
        self.cluster.stop()
        if self.training:
            self.training.close()
        if not self.options.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Without the operator; it is started again at the end."""
        self._kept.clear()
        self.running.kill()
        yield
        self.running.start()
        self.meter.watch(self.subject.name, self.running.pid)
        self._kept.set()

    def quiet(self) -> None:
        """Wait until the operator sends no request."""
        wait_until(lambda: self.audit.quiet_for() > QUIET_SECONDS, "the operator is quiet", self.options.limit)

    def rests(self) -> bool:
        """Whether the controller manager and the scheduler are idle; takes a few seconds."""
        names = ("kube-controller-manager", "kube-scheduler")
        before = sum(map(self.meter.cpu, names))
        time.sleep(RESTING_SECONDS)
        return sum(map(self.meter.cpu, names)) - before < RESTING_SHARE * RESTING_SECONDS

    def looks(self) -> float:
        """How many times the operator reports to have reconciled a job."""
        return self.reports(self.subject.looks[1])

    def reports(self, name: str, *labels: str) -> float:
        """The sum of a metric of the operator, of its samples with these labels; 0 while it starts."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.subject.looks[0]}/metrics", timeout=30) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        found = [line for line in lines if line.startswith(f"{name}{{") and all(label in line for label in labels)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def post(self, key: Key) -> Moment:
        """Create one job. Returns when."""
        at = Moment.now()
        self.cluster.api.create(self.subject.path(key[0]), self.subject.make(key[1]))
        return at

    def train(self) -> None:
        """All jobs make progress, if there is a store. The first reading of all runs is not part of what follows."""
        if self.training and not self.training.steps:
            self.say("the jobs make progress")
            jobs = self.cluster.api.items(self.subject.path(None))
            self.training.record(
                [(job["metadata"]["namespace"], job["metadata"]["name"], job["status"]["runId"]) for job in jobs]
            )
            begun = time.time()
            self.training.go()
            wait_until(
                lambda: self._shown(begun) >= len(jobs), "a step of each job is in its status", self.options.limit
            )
        elif self.training:
            self.training.go()

    def delete_a_pod(self, key: Key, role: str | None = None, **options: int) -> Moment:
        """Delete the job's last pod, of this role. Returns when."""
        path = f"/api/v1/namespaces/{key[0]}/pods"
        label = f"{self.subject.owner_label}={key[1]}" + (f",dapo.io/role={role}" if role else "")
        (*_, pod) = self.cluster.api.items(path, labelSelector=label)
        at = Moment.now()
        self.cluster.api.delete(f"{path}/{pod['metadata']['name']}", **options)
        return at

    def whole(self, keys: Sequence[Key], since: float) -> bool:
        """Whether each job has all its pods again, and at least one newer than `since`."""
        return all(self.alive(key) == self.subject.pods and self.last_pod(key) > since for key in keys)

    def alive(self, key: Key) -> int:
        """Existing pods of the job."""
        return sum(uid not in self.observer.gone for uid in list(self.observer.pods[key]))

    def last_pod(self, key: Key) -> float:
        """When its newest pod existed."""
        return max(list(self.observer.pods[key].values()))

    @contextmanager
    def profiled(self, phase: str) -> Iterator[None]:
        """py-spy on our operator, if requested."""
        if self.options.profile is None or self.subject.name != "dapo":
            yield
            return
        spy = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
        flags = ["record", "-p", str(self.running.pid), "-d", "3600", "-f", "raw", "-r", "200"]
        record = self.options.profile.with_suffix(f".{phase}")
        process = Process("py-spy", [spy, *flags, "-o", str(record)], self.folder / "py-spy.log")
        process.start()
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGINT)  # it writes its record then

    def say(self, text: str | Figures) -> None:
        """Tell whoever waits."""
        told = text if isinstance(text, str) else json.dumps(text)
        print(f"{time.strftime('%H:%M:%S')} {self.subject.name}: {told}", file=sys.stderr, flush=True)

    def _shown(self, since: float) -> int:
        """Jobs whose status was written."""
        requests = self.audit.since(since)
        return len({(each.namespace, each.name) for each in requests if each.resource == "dapojobs/status"})

    def _keep_running(self) -> None:
        while not self._ends.wait(1.0):
            if self._kept.is_set() and self.running.exit_code is not None:
                self.ended += 1
                self.say(f"the operator ended: {self.running.last_lines(1)}")
                self.running.start()
                self.meter.watch(self.subject.name, self.running.pid)

    def _identity(self) -> Path:
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

    def _holder(self) -> str | None:
        """Who has the operator's lease."""
        namespace, name = self.subject.lease
        leases = self.cluster.api.items(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
        found = [lease["spec"].get("holderIdentity") for lease in leases if lease["metadata"]["name"] == name]
        return found[0] or None if found else None


def _object(api_version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
