"""The pictures of docs/dashboard.md, taken in a real Chromium: `make pictures`.

    python benchmarks/dashboard_pictures.py [--only dashboard-live dashboard-phone] [--folder docs/images]

Those of finished runs are of the demo's, as they come with the platform. Those of other states are of the same curves
in a Postgres: cut at a step, moved to now, with values that are not finite, a thousand times. None is taken before the
page has settled: no script runs, nothing on it is stale, all charts are drawn and stay as they are.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.sync_api import Browser, Page

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support"), str(Path(__file__).parent)]

from dashboard_pages import open_page, pictures, says, wait_for_charts  # noqa: E402  found by the line above
from pictures import write_png  # noqa: E402
from servers.chromium import browser  # noqa: E402
from servers.dashboard import dashboard  # noqa: E402
from servers.postgres import PostgresServer  # noqa: E402

from dapo_core.db import (  # noqa: E402
    AlertRow,
    AttemptRow,
    CheckpointRow,
    CurvePoint,
    MetadataReader,
    MetadataWriter,
    Point,
    RunRow,
    WriteBatch,
    open_reader,
    open_writer,
)
from dapo_core.run import metrics  # noqa: E402
from dapo_core.run.guards import HEALTH_RULES  # noqa: E402
from dapo_dashboard import demo_runs, server_settings  # noqa: E402

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
LAPTOP: Final = (1360, 900)
PHONE: Final = (390, 1200)
# The demo's runs, by what is shown of them.
LEARNS, RESCUED = "arithmetic-20261121-0841-txz3", "arithmetic-rescued-20261121-0753-7pbk"
LIVE, YOUNG, FAILED = "arithmetic-live", "arithmetic-one-step", "arithmetic-failed"
IN_TABLE: Final = (
    metrics.REWARD_GENERATED, metrics.ACCURACY_GENERATED, metrics.ENTROPY, metrics.LENGTH_MEAN, metrics.STEP_SECONDS,
    "val-core/arithmetic/acc/mean@8",
)  # fmt: skip
BROKEN: Final = (metrics.GRADIENT_NORM, metrics.POLICY_LOSS)
MANY: Final = 1_000


@dataclass(frozen=True)
class Picture:
    """A page and how large it is shown; `shows` is a text by which it is known to be there, `charts` how many it has.
    `before`: what happens to the open page."""

    name: str
    path: str
    shows: str
    charts: int = 0
    size: tuple[int, int] = LAPTOP
    scheme: Literal["light", "dark"] = "light"
    before: Callable[[Page], None] = lambda page: None


def _of_demo(compared: Sequence[str]) -> list[Picture]:
    runs = "&".join(f"runs={run}" for run in compared)
    rescued = f"/run?run={RESCUED}"
    return [
        Picture("dashboard-run-light", rescued, "restart at 20", 12),
        Picture("dashboard-run-dark", rescued, "restart at 20", 12, scheme="dark"),
        Picture("dashboard-samples", f"/run?run={LEARNS}&view=Samples", "some of every prompt"),
        Picture("dashboard-timeline", f"{rescued}&view=Timeline", "ETTR"),
        Picture("dashboard-compare", f"/compare?{runs}&by=job+%28bands+over+its+runs%29", "Validation", 4),
        Picture("dashboard-phone", rescued, "restart at 20", 12, PHONE),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of pictures; default: all")
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where to write them; default: docs/images")
    options = parser.parse_args()

    def take(chromium: Browser, address: str, shown: Sequence[Picture]) -> None:
        for each in shown:
            if options.only is None or each.name in options.only:
                picture = options.folder / f"{each.name}.png"
                _take(chromium, address, each, picture)
                print(f"{picture}: {picture.stat().st_size // 1000} kB", flush=True)

    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        folder = Path(name)
        demo = demo_runs.unpack(folder)
        url = f"sqlite:///{demo / 'dapo.db'}"
        reader = open_reader(url)
        environment = {server_settings.STORE_URL: (demo / "store").as_uri(), server_settings.DEMO: "1"}
        with dashboard(url, folder / "demo.log", environment) as address:
            take(chromium, address, _of_demo([run.run_id for run in reader.runs()]))
        with _postgres() as server:
            with dashboard(server.new_database(upgraded=True), folder / "empty.log") as address:
                take(chromium, address, [Picture("dashboard-empty", "/", "There are no runs yet")])
            states = server.new_database(upgraded=True)
            _fill(reader, states)
            with dashboard(states, folder / "states.log") as address:
                take(chromium, address, _of_states())
                down = Picture("dashboard-offline", f"/run?run={LIVE}", "has not responded", 12)
                take(chromium, address, [replace(down, before=lambda _: server.stop())])


def _of_states() -> list[Picture]:
    return [
        Picture("dashboard-one-step", f"/run?run={YOUNG}", "1 / 60", 12),
        Picture("dashboard-live", f"/run?run={LIVE}", "32 / 60", 12),
        Picture("dashboard-failed", f"/run?run={FAILED}", "What this means", 12),
        Picture("dashboard-runs", "/?order=validation%2C+best+first", "GPUs in use"),
    ]


def _take(chromium: Browser, address: str, shown: Picture, picture: Path) -> None:
    width, height = shown.size
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=shown.scheme, has_touch=shown.size is PHONE
    )
    context.set_default_timeout(120_000)
    page = context.new_page()
    open_page(page, address + shown.path)
    if shown.charts:
        wait_for_charts(page, shown.charts)
    shown.before(page)
    says(page, shown.shows)
    _wait_until_settled(page)
    picture.parent.mkdir(parents=True, exist_ok=True)
    write_png(Image.open(BytesIO(page.screenshot())), picture, colors=256, rounds=2)
    context.close()


def _wait_until_settled(page: Page) -> None:
    """Nothing on the page is stale or about to be drawn, and its charts stay as they are."""
    for _ in range(2):
        page.wait_for_function(
            """() => document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'
                && !document.querySelector('[data-stale=true], [data-testid=stSkeleton], [data-testid=stSpinner]')"""
        )
        page.evaluate("() => document.fonts.ready.then(() => {})")
        pictures(page)


@contextmanager
def _postgres() -> Iterator[PostgresServer]:
    server = PostgresServer(fsync=False).start()
    try:
        yield server
    finally:
        server.close()


def _fill(reader: MetadataReader, url: str) -> None:
    """A run at its first step, one at work, one that failed, and the rows of a thousand."""
    writer = open_writer(url)
    failed = "Guard", "The gradient norm is not finite."
    _copy(reader, writer, LEARNS, FAILED, 44, "Failed", broken=range(42, 45), why=failed)
    remedy = HEALTH_RULES["NonFinite"].remedy.replace("`", "")
    message = f"actor/grad_norm is not finite at step 42. {remedy}"
    now = time.time()
    writer.raise_alert(AlertRow(FAILED, "NonFinite", now - 60, now - 10, message, "Warn", first_step=42))
    sources = [run.run_id for run in reader.runs()]
    states = ("Running", "Succeeded", "Succeeded", "Failed", "Stopped", "Suspended")
    for number in range(MANY - 3):
        source, state = sources[number % len(sources)], states[number * 7 % 11 % len(states)]
        steps = 60 if state == "Succeeded" else 8 + number * 13 % 50
        run_id = f"{source.rsplit('-', 3)[0]}-{number:04}"
        _copy(reader, writer, source, run_id, steps, state, only=IN_TABLE, before=120 + 577 * number)
    _copy(reader, writer, LEARNS, YOUNG, 1)
    _copy(reader, writer, LEARNS, LIVE, 32)
    writer.close()


def _copy(
    reader: MetadataReader, writer: MetadataWriter, source: str, run_id: str, steps: int, state: str = "Running", *,
    only: Sequence[str] = (), broken: range = range(0), why: tuple[str, str] | None = None, before: float = 5.0,
) -> None:  # fmt: skip
    """The first steps of a run as another that did its last so many seconds ago."""
    run = reader.run(source)
    assert run is not None
    curves = _curves(reader, source, only)
    last = max(point.ts for curve in curves.values() for point in curve if point.step <= steps)
    now = time.time()
    later = now - before - last
    started = (run.started_at or run.created_at) + later
    ended = None if state in ("Running", "Suspended") else now - before
    reason, message = why or (None, None)
    writer.create_run(
        RunRow(
            run_id, run.name, run.namespace, run.spec, run.config, state, reason, message,  # type: ignore[arg-type]
            started, started, ended, run.tags, run.total_steps, run.owner,
        )
    )  # fmt: skip
    writer.start_attempt(AttemptRow(run_id, 1, started, step_from=0))
    points = [
        Point.of(name, one.step, 1, one.ts + later, math.nan if one.step in broken and name in BROKEN else one.number)
        for name, curve in curves.items()
        for one in curve
        if one.step <= steps
    ]
    saved = [
        CheckpointRow(run_id, step, 1, "committed", f"file:///runs/{run_id}/step-{step}", now, 1, 1)
        for step in range(20, steps, 20)
    ]
    writer.write(run_id, WriteBatch(points=points, checkpoints=saved))


@cache
def _curves(reader: MetadataReader, run_id: str, only: Sequence[str]) -> dict[str, list[CurvePoint]]:
    """By metric; a metric that the run does not have is left out."""
    return {name: reader.curve(run_id, name) for name in reader.metrics(run_id) if not only or name in only}


if __name__ == "__main__":
    main()
