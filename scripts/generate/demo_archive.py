"""Make the archive of the demo runs out of real runs: `python scripts/generate/demo_archive.py HOME RUN...`.

It keeps what the pages of a run show: all curves, attempts, events, rows of checkpoints, and samples. Paths of the
machine that trained it are replaced by `file:///demo`. Alerts are what the guards of its job make of its curves.
"""

import json
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dapo_core.db import AlertRow, open_reader, open_writer, upgrade
from dapo_core.jobspec import parse_job
from dapo_core.run.guards import evaluate, metrics_of
from dapo_dashboard.demo_runs import ARCHIVE

_TABLES: Final = (
    "runs",
    "attempts",
    "run_keys",
    "points",
    "latest",
    "rollups",
    "events",
    "checkpoints",
    "samples",
    "alerts",
)
_PLACE: Final = "file:///demo"


def export(home: Path, stores: Sequence[Path], run_ids: Sequence[str], archive: Path) -> None:
    """Write `archive` with the runs `run_ids` of `home`, and their samples in any of `stores`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _copy_rows(home / "dapo.db", folder / "dapo.db", run_ids)
        _replace_paths(folder / "dapo.db", [home, Path.cwd()])
        for run_id in run_ids:
            _raise_alerts(f"sqlite:///{folder / 'dapo.db'}", run_id)
        for run_id in run_ids:
            _copy_samples(stores, folder / "store", run_id)
        _compact(folder / "dapo.db")
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            for path in sorted(folder.rglob("*")):
                packed.add(path, str(path.relative_to(folder)), recursive=False, filter=_anonymous)


def _copy_rows(source: Path, target: Path, run_ids: Sequence[str]) -> None:
    upgrade(f"sqlite:///{source}")
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    marks = ",".join("?" * len(run_ids))
    connection = sqlite3.connect(target, isolation_level=None)
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id NOT IN ({marks})", run_ids)
    connection.execute("DELETE FROM deliveries")
    connection.execute("DELETE FROM curve_points WHERE run_key NOT IN (SELECT run_key FROM run_keys)")
    connection.execute("DELETE FROM metric_names WHERE metric_id NOT IN (SELECT metric_id FROM latest)")
    connection.close()


def _compact(database: Path) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("VACUUM")
    connection.close()


def _replace_paths(database: Path, folders: Sequence[Path]) -> None:
    """Replace the paths of the machine that trained the runs, and the URIs of their checkpoints."""
    connection = sqlite3.connect(database, isolation_level=None)
    for run_id, spec, config in connection.execute("SELECT run_id, spec, config FROM runs").fetchall():
        job = json.loads(_without(spec, folders))
        job["spec"]["checkpoints"].pop("uri", None)
        changed = (json.dumps(job), _without(config, folders) if config else None, run_id)
        connection.execute("UPDATE runs SET spec = ?, config = ? WHERE run_id = ?", changed)
    for run_id, step, uri in connection.execute("SELECT run_id, step, uri FROM checkpoints").fetchall():
        place = f"{_PLACE}/{run_id}/checkpoints/{uri.rsplit('/', 1)[-1]}"
        connection.execute("UPDATE checkpoints SET uri = ? WHERE run_id = ? AND step = ?", (place, run_id, step))
    for table in ("events", "runs", "attempts"):
        for rowid, message in connection.execute(f"SELECT rowid, message FROM {table}").fetchall():
            if message:
                connection.execute(
                    f"UPDATE {table} SET message = ? WHERE rowid = ?", (_without(message, folders), rowid)
                )
    connection.execute("VACUUM")
    connection.close()


def _raise_alerts(url: str, run_id: str) -> None:
    """Record an alert for each of the job's guards that is exceeded at the end of the run."""
    reader, writer = open_reader(url), open_writer(url)
    run = reader.run(run_id)
    assert run is not None
    guards = parse_job(dict(run.spec)).spec.guards
    curves = {name: reader.curve(run_id, name) for name in metrics_of(guards)}
    history = {name: [(point.step, point.value, point.flag) for point in curve] for name, curve in curves.items()}
    for alert in evaluate(guards, history):
        at = {point.step: point.ts for point in curves[alert.metric]}
        row = AlertRow(run_id, alert.rule, at[alert.since], at[alert.step], alert.message, alert.action, alert.since)
        writer.raise_alert(row)
    reader.close()
    writer.close()


def _without(text: str, folders: Sequence[Path]) -> str:
    for folder in folders:
        text = text.replace(f"file://{folder}", _PLACE).replace(str(folder), "/demo")
    return text


def _copy_samples(stores: Sequence[Path], target: Path, run_id: str) -> None:
    for store in stores:
        for path in (store / run_id / "samples").glob("*.parquet"):
            kept = target / run_id / "samples" / path.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(path.read_bytes())


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.isdir() else 0o644
    return info


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    export(folder, [folder / "checkpoints", folder / "store"], sys.argv[2:], ARCHIVE)
