"""TensorBoard, MLflow and the dashboard over the same curves."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
from dashboard_data import START, Store
from servers.dashboard import dashboard
from servers.ports import free_port

from dapo_core.db import Point, WriteBatch

START_SECONDS = 180
_TENSORBOARD: Final = """
import json, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
curves = json.load(open(sys.argv[1]))
writer = EventFileWriter(sys.argv[2], max_queue_size=100000)
for step in range(len(next(iter(curves.values())))):
    values = [Summary.Value(tag=name, simple_value=curve[step]) for name, curve in curves.items()]
    writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=values)))
writer.close()
"""
# The points go past MLflow's client, which takes minutes for half a million.
_MLFLOW: Final = """
import json, sqlite3, sys
from mlflow.tracking import MlflowClient
client = MlflowClient("sqlite:///" + sys.argv[2])
run = client.create_run(client.create_experiment("bench"))
client.set_terminated(run.info.run_id)
points = [
    (name.replace("@", "_"), value, 10**12 + step, step, False, run.info.run_id)
    for name, curve in json.load(open(sys.argv[1])).items()
    for step, value in enumerate(curve)
]
last = list({point[0]: point for point in points}.values())
with sqlite3.connect(sys.argv[2]) as database:
    for table, rows in (("metrics", points), ("latest_metrics", last)):
        database.executemany(
            f"INSERT INTO {table} (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
print(run.info.experiment_id, run.info.run_id)
"""
Serve = Callable[[str, Path, Path], AbstractContextManager[str]]


@contextmanager
def _tensorboard(python: str, folder: Path, curves: Path) -> Iterator[str]:
    logs = folder / "tensorboard"
    subprocess.run([python, "-c", _TENSORBOARD, str(curves), str(logs)], check=True)
    port = free_port()
    command = [python, "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(port), "--host", "127.0.0.1"]
    with _served([*command, "--reload_interval", "0"], port, "/data/plugin/timeseries/tags"):
        time.sleep(20)  # it reads its files in the background and says nothing when it is done
        yield f"http://127.0.0.1:{port}/#timeseries"


@contextmanager
def _mlflow(python: str, folder: Path, curves: Path) -> Iterator[str]:
    store = folder / "mlflow.db"
    made = subprocess.run(
        [python, "-c", _MLFLOW, str(curves), str(store)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    port = free_port()
    command = [python, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{store}", "--workers", "1"]
    command += ["--port", str(port)]
    with _served(command, port, "/health"):
        yield f"http://127.0.0.1:{port}/#/experiments/{made[-2]}/runs/{made[-1]}/model-metrics"


@contextmanager
def _ours(python: str, folder: Path, curves: Path) -> Iterator[str]:
    (folder / "ours").mkdir()
    store = Store(folder / "ours")
    store.run("bench", state="Succeeded", total=1)
    content: dict[str, list[float]] = json.loads(curves.read_text())
    steps = len(next(iter(content.values())))
    for begin in range(0, steps, 2_000):
        points = [
            Point.of(name, step, 1, START + step, curve[step])
            for name, curve in content.items()
            for step in range(begin, min(begin + 2_000, steps))
        ]
        store.writer.write("bench", WriteBatch(points=points))
    with dashboard(store.url, folder / "ours.log") as address:
        yield f"{address}/run?run=bench"


@contextmanager
def _served(command: list[str], port: int, path: str) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        _wait(process, f"http://127.0.0.1:{port}{path}")
        yield
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except urllib.error.HTTPError:
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise RuntimeError(f"{process.args!r} does not answer at {url}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its workers, which outlive a gentler end, and of which some lead a session of their own."""
    try:
        workers = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        workers = []
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
    process.wait(30)


ALL: Final[dict[str, Serve]] = {"TensorBoard": _tensorboard, "MLflow": _mlflow, "the dashboard": _ours}
