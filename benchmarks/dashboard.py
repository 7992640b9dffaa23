"""How fast the dashboard's pages are, over a real Postgres and in a real Chromium, and beside TensorBoard and MLflow.

    python benchmarks/dashboard.py [--points 1000000] [--runs 1000] [--viewers 20] [--refreshes 1800] [--json FILE]
                                   [--peer-points 20000] [--parts queries pages quiet memory peers] [--store URL]

It fills a Postgres with `--runs` runs and one run of `--points` points per curve, and measures
- the queries of a run's page, of the table of runs and of a live refresh,
- the seconds until a page is settled in Chromium (half a second without a change), with and without a cache
  in the browser, what the browser's main thread works meanwhile, and both of Streamlit pages with nothing on them,
- how long after its commit, and after the page's request, a new step is drawn,
- `--viewers` viewers who open the page at once, each speaking to the server as a browser does,
- what a refresh costs while nothing happens, and
- memory of server and browser over `--refreshes` refreshes (1,800 are an hour of them; here they come faster).
The same curves, `--peer-points` points each, then go to TensorBoard, to MLflow and to the dashboard, one after the
other, and the points that each sends to be drawn are counted. Peers need scripts/bench-setup.sh. Give it a machine of
its own: figures are of one run on one machine, ratios are what to compare.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support"), str(Path(__file__).parent)]

from dashboards import data, pages, peers, queries, refreshes, viewers  # noqa: E402  found by the line above
from dashboards.floor import empty_pages  # noqa: E402
from servers.chromium import browser  # noqa: E402
from servers.dashboard import dashboard  # noqa: E402
from servers.postgres import PostgresServer  # noqa: E402

from dapo_dashboard.server_settings import REFRESH_SECONDS  # noqa: E402

Figures = dict[str, float]
PARTS = ["queries", "pages", "quiet", "memory", "peers"]
# The shortest interval that the dashboard allows: an hour of refreshes (every two seconds by default) in minutes.
FAST = {REFRESH_SECONDS: "0.2"}
# A refresh of "quiet", and its viewers.
QUIET_SECONDS, CROWD = 0.5, 50
# A page that refreshes itself never settles.
QUIET = {REFRESH_SECONDS: "600"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000, help="points of each curve of the long run")
    parser.add_argument("--runs", type=int, default=1_000, help="runs in the table")
    parser.add_argument("--viewers", type=int, default=20, help="viewers who open a page at once")
    parser.add_argument("--refreshes", type=int, default=1_800, help="live refreshes over which memory is watched")
    parser.add_argument("--peer-points", type=int, default=20_000, help="points of each curve for the comparison")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--store", help="URL of a Postgres that `dashboards.data.fill` has filled before")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    # By default this signal ends a program at once, and its servers go on.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as name:
        if options.parts != ["peers"]:
            figures |= own(Path(name), options)
        if "peers" in options.parts:
            figures |= beside(Path(name), options.peer_points)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def report(figures: Mapping[str, float]) -> Mapping[str, float]:
    """Print them, as soon as they are known."""
    for key, value in figures.items():
        print(f"{key:<70}{value:>12,.3f}", flush=True)
    return figures


def own(folder: Path, options: argparse.Namespace) -> Figures:
    """The dashboard over Postgres."""
    if options.store:
        return measured(folder, options.store, options)
    server = PostgresServer(fsync=False, settings={"shared_buffers": "512MB", "max_wal_size": "4GB"})
    server.start()
    try:
        url = server.new_database(upgraded=True)
        data.fill(url, options.runs, options.points)
        return measured(folder, url, options)
    finally:
        server.close()


def measured(folder: Path, url: str, options: argparse.Namespace) -> Figures:
    """Queries, pages, viewers and refreshes over a filled store; each is printed as soon as it is known."""
    figures: Figures = {}
    if "queries" in options.parts:
        figures |= report(queries.measure(url))
    if "pages" in options.parts:
        looked_at = {"table of runs": "/", "page of the long run": f"/run?run={data.LONG}"}
        with (
            dashboard(url, folder / "still.log", QUIET) as address,
            empty_pages(folder) as floor,
            browser() as chromium,
        ):
            urls = {name: address + path for name, path in looked_at.items()}
            figures |= report(pages.settled(chromium, urls | floor))
            figures |= report(viewers.measure(address, f"run={data.LONG}", options.viewers))
        with dashboard(url, folder / "live.log", {REFRESH_SECONDS: "2"}) as address, browser() as chromium:
            figures |= report(refreshes.live(chromium, address, url))
    if "quiet" in options.parts:
        still = {"table of runs": ("", ""), "page of a live run": ("run", f"run={data.GROWING}")}
        with dashboard(url, folder / "quiet.log", {REFRESH_SECONDS: str(QUIET_SECONDS)}) as address:
            figures |= report(viewers.quiet(address, still, QUIET_SECONDS, CROWD, partial(data.tick, url)))
    if "memory" in options.parts:
        with dashboard(url, folder / "fast.log", FAST) as address, browser() as chromium:
            figures |= report(refreshes.memory(chromium, address, url, options.refreshes))
    return figures


def beside(folder: Path, points: int) -> Figures:
    """The same curves in TensorBoard, MLflow and the dashboard."""
    python = subprocess.run(["scripts/bench-setup.sh"], check=True, capture_output=True, text=True).stdout.strip()
    curves = folder / "curves.json"
    curves.write_text(
        json.dumps({name: [value(step) for step in range(points)] for name, value in data.CURVES.items()})
    )
    figures: Figures = {}
    with browser() as chromium:
        for name, serve in peers.ALL.items():
            with serve(python, folder, curves) as address:
                figures |= report(pages.drawn(chromium, name, address))
    return figures


if __name__ == "__main__":
    main()
