"""The operator as a process of its own, as tests start, kill and pause it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import urllib3
from patience import patient
from servers.ports import free_port

# The namespace of the operator that tests share.
SHARED = "dapo-shared"
# Another of its namespaces, with a quota.
QUOTA = "dapo-quota"
ROOT = Path(__file__).parents[2]


class OperatorProcess:
    """`python -m dapo_operator` on one cluster; its log is at `log`."""

    def __init__(self, kubeconfig: Path, folder: Path, *, namespaces: str = "", **environment: str) -> None:
        self.folder = folder
        self.log = folder / "operator.log"
        self.port = free_port()
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("DAPO_")},
            "KUBECONFIG": str(kubeconfig),
            "DAPO_NAMESPACES": namespaces,
            "DAPO_TRAINER_IMAGE": "trainer:test",
            "DAPO_TELEMETRY_PORT": str(self.port),
            "DAPO_LEASE": "",
            "DAPO_REQUESTS_PER_SECOND": "1000",
            "DAPO_REQUESTS_BURST": "1000",
            "DAPO_LOG_FORMAT": "plain",
            "DAPO_STATUS_DELAY_SECONDS": "2",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "OperatorProcess":
        """Start it; connecting takes a while."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "dapo_operator"]
            self._process = subprocess.Popen(command, env=self._environment, cwd=ROOT, stdout=log, stderr=log)
        return self

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process; it must have been started."""
        assert self._process is not None
        return self._process

    def signal(self, number: int) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: the lease is not released."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 30) -> int:
        """Send SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(patient(seconds))
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def get(self, path: str) -> tuple[int, str]:
        """Code and text of /metrics or /healthz."""
        answer = urllib3.request("GET", f"http://127.0.0.1:{self.port}{path}", timeout=patient(10))
        return answer.status, answer.data.decode()
