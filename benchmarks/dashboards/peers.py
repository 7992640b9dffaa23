"""TensorBoard, MLflow and the dashboard over the same curves."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

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
_MLFLOW: Final = """
import json, sys
import mlflow
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
mlflow.set_tracking_uri(sys.argv[2])
client = MlflowClient()
run = client.create_run(client.create_experiment("bench"))
for name, curve in json.load(open(sys.argv[1])).items():
    for at in range(0, len(curve), 1000):
        part = [Metric(name.replace("@", "_"), v, 10**12 + at + i, at + i) for i, v in enumerate(curve[at : at + 1000])]
        client.log_batch(run.info.run_id, metrics=part)
client.set_terminated(run.info.run_id)
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
    store = f"sqlite:///{folder / 'mlflow.db'}"
    made = subprocess.run(
        [python, "-c", _MLFLOW, str(curves), store], check=True, capture_output=True, text=True
    ).stdout.split()
    port = free_port()
    command = [python, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(port), "--workers", "1"]
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
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10).close()
                break
            except urllib.error.HTTPError:
                break
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # MLflow's workers outlive a gentler end
        process.wait(30)


ALL: Final[dict[str, Serve]] = {"TensorBoard": _tensorboard, "MLflow": _mlflow, "the dashboard": _ours}
