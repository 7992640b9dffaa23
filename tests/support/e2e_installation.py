"""The platform on a cluster with a real kubelet, as the end-to-end tests use it."""

import json
import os
import socket
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from patience import factor
from servers.ports import free_port
from servers.tools import tool

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "dapo"
RELEASE, NAMESPACE = "dapo", "dapo"
TEAM, OTHER_TEAM = "dapo-demo", "team-b"
JOB: Final = "arithmetic-cluster"
# The job must still be training at the last fault, however fast the machine is; then its number of steps is set.
ENDLESS: Final = 2000
GONE: Final = ["delete", "pod", "--grace-period=0", "--force", "--wait=false"]
# What the machine's load makes of seconds; nothing here measures speed.
PATIENCE: Final = factor()
VALUES: Final[dict[str, Any]] = {
    "jobNamespaces": [{"name": TEAM, "create": True}, {"name": OTHER_TEAM, "create": True}],
    "demo": {"namespace": TEAM},
    # Each wait for a step would last half a minute longer.
    "operator": {"watchNodes": True, "env": [{"name": "DAPO_STATUS_DELAY_SECONDS", "value": "4"}]},
}
Object = dict[str, Any]


class Installation:
    """`kubectl` and `helm` raise AssertionError with what the program said."""

    def __init__(self, kubeconfig: Path, pictures: Path) -> None:
        self.kubeconfig, self.pictures = kubeconfig, pictures
        self.environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def kubectl(self, *arguments: str, given: str = "", seconds: float = 120) -> str:
        return self._run([str(tool("kubectl")), *arguments], given, seconds)

    def helm(self, *arguments: str, values: Mapping[str, Any] | None = None, seconds: float = 1800) -> str:
        command = [str(tool("helm")), "--namespace", NAMESPACE, *arguments]
        if values is not None:
            command += ["--values", "-"]
        return self._run(command, json.dumps(values or {}), seconds)

    def install(self, **changes: Any) -> str:
        """Install or upgrade, and wait until everything is ready."""
        flags = ["--install", "--create-namespace", "--wait", f"--timeout={1200 * PATIENCE:.0f}s"]
        return self.helm("upgrade", RELEASE, str(CHART), *flags, values={**VALUES, **changes})

    def image(self, name: str, tag: str) -> str:
        """Build one of the platform's images with another tag, hand it to the cluster, and say its reference."""
        prefix = os.environ.get("DAPO_PREFIX", "localhost/dapo-")
        environment = {**self.environment, "DAPO_TAG": tag}
        subprocess.run([ROOT / "scripts" / "images.sh", "--load", name], env=environment, check=True, timeout=600)
        return f"{prefix}{name}:{tag}"

    def submit(self) -> None:
        """Apply the example."""
        job = yaml.safe_load((ROOT / "examples" / f"{JOB}.yaml").read_text())
        # Checkpoints more often than the example's: what a fault costs is not what is looked at.
        job["spec"]["schedule"] |= {"steps": ENDLESS, "checkpointEvery": 5, "validateEvery": 10}
        self.kubectl("--namespace", TEAM, "apply", "--filename", "-", given=json.dumps(job))

    def patch(self, spec: Object) -> None:
        """Change fields of the job's spec."""
        change = json.dumps({"spec": spec})
        self.kubectl("--namespace", TEAM, "patch", "dapojob", JOB, "--type=merge", "--patch", change)

    def get(self, kind: str, name: str = "", namespace: str = TEAM, labels: str = "") -> Object:
        selector = [f"--selector={labels}"] if labels else []
        found: Object = json.loads(
            self.kubectl("--namespace", namespace, "get", kind, *filter(None, [name]), *selector, "--output=json")
        )
        return found

    def pods(self, job: str = JOB, namespace: str = TEAM) -> dict[str, Object]:
        """Pods of a job by name."""
        items = self.get("pods", namespace=namespace, labels=f"dapo.io/job={job}")["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def pod_of(self, role: str) -> str:
        """The name of a pod of the job."""
        return next(name for name, pod in self.pods().items() if pod["metadata"]["labels"]["dapo.io/role"] == role)

    def loses(self, role: str) -> None:
        """Kill a pod of the job, and wait until the attempt after it trains; it begins at the newest checkpoint."""
        attempt, checkpoint = self.attempt(), self.status()["checkpoint"]["step"]
        self.kubectl("--namespace", TEAM, *GONE, self.pod_of(role))
        self.wait("the next attempt", lambda: self.attempt() == attempt + 1, 120)
        assert self.status()["attempts"][-1]["fromStep"] >= checkpoint
        self.goes_on(f"the {role} pod was killed")

    def goes_on(self, what: str, seconds: float = 600) -> None:
        """Wait for a step after `what`, by a training attempt: points of a killed one may still arrive meanwhile."""
        before = self.step()
        self.wait(
            f"a step after {what}", lambda: self.status()["phase"] == "Training" and self.step() > before, seconds
        )

    def status(self, job: str = JOB, namespace: str = TEAM) -> Object:
        status: Object = self.get("dapojob", job, namespace).get("status", {})
        return status

    def step(self) -> int:
        return self.status().get("progress", {}).get("step") or 0

    def attempt(self) -> int:
        attempts = self.status().get("attempts") or [{"number": 0}]
        return int(attempts[-1]["number"])

    def wait(self, what: str, holds: Callable[[], Any], seconds: float) -> Any:
        """What `holds` answers, as soon as it is true. The job's state is part of the error."""
        end = time.monotonic() + seconds * PATIENCE
        while not (found := holds()):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds * PATIENCE:.0f} s: {what}\n{self.story()}")
            time.sleep(1)
        return found

    def story(self) -> str:
        """For who reads a failure."""
        parts = []
        for command in (
            ["get", "pods,dapojobs", "--all-namespaces", "--output=wide"],
            ["--namespace", TEAM, "get", "events", "--sort-by=.lastTimestamp"],
            ["--namespace", NAMESPACE, "logs", "--selector=app.kubernetes.io/component=operator", "--tail=20"],
            ["--namespace", TEAM, "logs", "--selector=dapo.io/role=head", "--tail=40"],
        ):
            answer = subprocess.run(
                [str(tool("kubectl")), *command], env=self.environment, capture_output=True, text=True, timeout=60
            )
            parts.append("\n".join((answer.stdout + answer.stderr).splitlines()[-60:]))
        return "\n---\n".join(parts)

    def secret(self, name: str, namespace: str) -> dict[str, str]:
        data: dict[str, str] = self.get("secret", name, namespace)["data"]
        return {key: b64decode(value).decode() for key, value in data.items()}

    @contextmanager
    def forwarded(self, service: str, port: int) -> Iterator[int]:
        """A port of this machine that leads to a service of the release."""
        local = free_port()
        command = [str(tool("kubectl")), "--namespace", NAMESPACE, "port-forward", service, f"{local}:{port}"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL) as process:
            try:
                self.wait(f"port-forward to {service}", lambda: _answers(local), 30)
                yield local
            finally:
                process.terminate()

    @contextmanager
    def stores(self, namespace: str = TEAM) -> Iterator[dict[str, str]]:
        """The Secret of a job namespace, its addresses changed to what can be reached from here."""
        secret = self.secret("dapo-stores", namespace)
        with (
            self.forwarded(f"service/{RELEASE}-postgres", 5432) as database,
            self.forwarded(f"service/{RELEASE}-minio", 9000) as objects,
        ):
            inside = f"{RELEASE}-postgres.{NAMESPACE}.svc:5432", f"{RELEASE}-minio.{NAMESPACE}.svc:9000"
            outside = f"127.0.0.1:{database}", f"127.0.0.1:{objects}"
            for key, value in secret.items():
                for here, there in zip(inside, outside, strict=True):
                    value = value.replace(here, there)
                secret[key] = value
            yield secret

    def _run(self, command: list[str], given: str, seconds: float) -> str:
        answer = subprocess.run(
            command, env=self.environment, input=given, capture_output=True, text=True, timeout=seconds
        )
        if answer.returncode:
            raise AssertionError(f"{' '.join(command[:8])}: {answer.stdout}{answer.stderr}\n{self.story()}")
        return answer.stdout


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
