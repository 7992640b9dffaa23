"""The dashboard's own server, as `dapo dashboard` runs it, over a metadata store of a test."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from patience import patient

from servers.ports import free_port

_PACKAGE = Path(__file__).parents[3] / "dashboard" / "dapo_dashboard"
SCRIPT, SERVER = _PACKAGE / "pages" / "app.py", _PACKAGE / "asgi.py"
START_SECONDS = 90


@contextmanager
def dashboard(
    metadata_url: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    *arguments: str,
    port: int | None = None,
    server: Path = SERVER,
) -> Iterator[str]:
    """The server's address, while the block runs. Whatever it writes is in `log`. `server`: what Streamlit runs."""
    port = port or free_port()
    env = os.environ | {
        "DAPO_METADATA_URL": metadata_url,
        "DAPO_DASHBOARD_REFRESH_SECONDS": "0.5",
        **(environment or {}),
    }
    command = [sys.executable, "-m", "streamlit", "run", str(server), "--server.port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--server.address", "127.0.0.1", *arguments],
            env=env,
            stdout=output,
            stderr=output,
            cwd=log.parent,
        )
        try:
            _wait(process, port, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + patient(START_SECONDS)
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError(f"The dashboard did not start:\n{log.read_text()[-3000:]}")
