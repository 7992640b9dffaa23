"""Metrics, health and logs of the operator."""

import asyncio
import io
import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import web
from patience import patient

from dapo_core.addresses import every_interface
from dapo_operator.telemetry.health import MOST_CONNECTIONS, Health, TelemetryServer
from dapo_operator.telemetry.instrumentation import Telemetry, resource_in
from dapo_operator.telemetry.log_format import bound, set_up

KEY = ("team", "first")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sample(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.metrics.registry.get_sample_value(f"dapo_operator_{name}", labels)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/namespaces/team/pods/first-head-1-0", "pods"),
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces/team", "namespaces"),
        ("/apis/dapo.io/v1alpha1/namespaces/team/dapojobs/first/status", "dapojobs/status"),
        ("/apis/dapo.io/v1alpha1/dapojobs", "dapojobs"),
        ("/apis/coordination.k8s.io/v1/namespaces/status/leases/status", "leases"),
        ("/version", "other"),
        ("/", "other"),
    ],
)
def test_a_request_is_counted_by_resource_without_names(path: str, expected: str) -> None:
    assert resource_in(path) == expected


def test_queue_latency_and_time_from_event_to_action() -> None:
    clock = Clock()
    telemetry = Telemetry(clock=clock)
    telemetry.woken(KEY)
    clock.now += 2
    telemetry.woken(KEY)
    assert sample(telemetry, "queue_depth") == 1
    with telemetry.reconciling(KEY):
        assert sample(telemetry, "queue_depth") == 0
        clock.now += 1
        telemetry.acted()
        telemetry.acted()
        clock.now += 4
    assert sample(telemetry, "event_to_action_seconds_count") == 1
    assert sample(telemetry, "event_to_action_seconds_sum") == 3
    assert sample(telemetry, "reconcile_seconds_sum") == 5
    assert sample(telemetry, "reconciles_total", result="ok") == 1


def test_a_reconciliation_that_fails_or_that_nothing_woke() -> None:
    telemetry = Telemetry(clock=Clock())
    with pytest.raises(KeyError), telemetry.reconciling(KEY):
        telemetry.acted()
        raise KeyError
    assert sample(telemetry, "event_to_action_seconds_count") == 0
    assert sample(telemetry, "reconciles_total", result="error") == 1
    telemetry.woken(KEY)
    telemetry.forget(KEY)
    assert sample(telemetry, "queue_depth") == 0


def test_jobs_are_counted_when_they_are_asked_for() -> None:
    jobs = {"Training": 2}
    telemetry = Telemetry()
    telemetry.jobs = lambda: jobs
    jobs["Failed"] = 1
    telemetry.restarted("NodeLost")
    assert sample(telemetry, "jobs", condition="Training") == 2
    assert sample(telemetry, "jobs", condition="Failed") == 1
    assert sample(telemetry, "restarts_total", reason="NodeLost") == 1


async def _requests(telemetry: Telemetry) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=201 if request.method == "POST" else 404)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(middlewares=(telemetry.middleware,)) as session:
        telemetry.woken(KEY)
        with telemetry.reconciling(KEY):
            await session.get(f"{root}/api/v1/namespaces/team/pods/first")
            await session.post(f"{root}/api/v1/namespaces/team/pods")
        await session.get(f"{root}/api/v1/pods?watch=true")
        with pytest.raises(aiohttp.ClientError):
            await session.get("http://127.0.0.1:1/api/v1/pods")
    await runner.cleanup()


def test_requests_are_counted_by_verb_resource_and_code() -> None:
    telemetry = Telemetry()
    asyncio.run(_requests(telemetry))
    counted = {("GET", "404"): 1, ("POST", "201"): 1, ("WATCH", "404"): 1, ("GET", "none"): 1}
    for (verb, code), count in counted.items():
        assert sample(telemetry, "api_requests_total", verb=verb, resource="pods", code=code) == count
    assert sample(telemetry, "event_to_action_seconds_count") == 1


@pytest.mark.parametrize(
    ("seconds", "beats", "woken", "expected"),
    [
        (29, False, False, ""),
        (31, False, False, "The event loop has not run for 31 s."),
        (299, True, True, ""),
        (301, True, True, "Jobs are waiting, and none has been reconciled for 301 s."),
    ],
    ids=["runs", "stalled", "busy", "a job is stuck"],
)
def test_problems_of_the_operator(seconds: float, beats: bool, woken: bool, expected: str) -> None:
    clock = Clock()
    health = Health(clock)
    if woken:
        health.woken(KEY)
    clock.now += seconds
    if beats:
        health.beat()
    assert health.problems() == ([expected] if expected else [])
    if woken:
        assert health.reconciling(KEY) == seconds
        assert health.problems() == []


def test_a_long_queue_that_moves_is_healthy() -> None:
    """A thousand jobs at once: the last ones wait for longer than a queue may stand still."""
    clock = Clock()
    health = Health(clock)
    for number in range(1000):
        health.woken(("team", str(number)))
    for number in range(1000):
        clock.now += 1
        health.beat()
        health.reconciling(("team", str(number)))
        health.woken(("team", str(number)))
        assert health.problems() == []


def test_one_job_that_is_left_out_is_seen() -> None:
    clock = Clock()
    health = Health(clock)
    health.woken(KEY)
    for _ in range(302):
        clock.now += 1
        health.beat()
        health.woken(("team", "other"))
        health.reconciling(("team", "other"))
    assert health.problems() == ["A job has been waiting for 302 s, while later ones were reconciled."]


@pytest.fixture
def served() -> Iterator[tuple[str, list[str], list[str]]]:
    """The URL, and what is wrong."""
    ill, unready = list[str](), list[str]()
    server = TelemetryServer(every_interface(), 0, Telemetry().metrics.registry, lambda: ill, lambda: unready)
    server.start()
    yield f"http://127.0.0.1:{server.port}", ill, unready
    server.stop()


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=patient(10)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes_are_answered_and_numbers_shown(served: tuple[str, list[str], list[str]]) -> None:
    url, ill, unready = served
    assert _get(f"{url}/healthz") == (200, "ok\n")
    unready.append("The pods are not listed yet.")
    assert _get(f"{url}/healthz")[0] == 200
    assert _get(f"{url}/readyz") == (503, "The pods are not listed yet.\n")
    ill.append("The event loop has not run for 31 s.")
    assert _get(f"{url}/healthz") == (503, "The event loop has not run for 31 s.\n")
    code, text = _get(f"{url}/metrics")
    assert code == 200
    assert "dapo_operator_queue_depth 0.0" in text
    assert "process_resident_memory_bytes" in text
    assert _get(f"{url}/else")[0] == 404


def test_a21_connections_that_say_nothing_do_not_keep_a_probe_out(served: tuple[str, list[str], list[str]]) -> None:
    url, _, _ = served
    port = int(url.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MOST_CONNECTIONS)]
    try:
        assert _get(f"{url}/healthz") == (200, "ok\n")
        first = silent[0]
        first.settimeout(patient(10))
        assert first.recv(1) == b"", "the oldest is ended"
    finally:
        for each in silent:
            each.close()


def test_a_stalled_loop_is_seen_from_outside() -> None:
    health = Health(stalled_after=0.2)
    server = TelemetryServer("127.0.0.1", 0, Telemetry().metrics.registry, health.problems)
    server.start()

    async def main() -> tuple[int, int]:
        beating = asyncio.create_task(health.run())
        await asyncio.sleep(0)
        well = _get(f"http://127.0.0.1:{server.port}/healthz")[0]
        threading.Event().wait(0.5)  # blocks the loop
        ill = _get(f"http://127.0.0.1:{server.port}/healthz")[0]
        beating.cancel()
        return well, ill

    try:
        assert asyncio.run(main()) == (200, 503)
    finally:
        server.stop()


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("root_logger")
def test_log_records_carry_the_job_and_the_attempt() -> None:
    stream = io.StringIO()
    set_up("info", stream=stream)
    logger = logging.getLogger("dapo_operator.reconciler")
    with bound(job="team/first"), bound(attempt=2, role=None):
        logger.warning("The head ended with %d.", 137)
    try:
        raise ValueError("ü")
    except ValueError:
        logger.exception("Odd.")
    logger.debug("Not shown.")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    time = first.pop("time")
    assert time.endswith("+00:00")
    assert first == {
        "level": "warning",
        "logger": "dapo_operator.reconciler",
        "message": "The head ended with 137.",
        "job": "team/first",
        "attempt": 2,
    }
    assert second["error"].endswith("ValueError: ü")
    assert "job" not in second


@pytest.mark.usefixtures("root_logger")
def test_log_records_for_a_terminal() -> None:
    stream = io.StringIO()
    set_up("info", as_json=False, stream=stream)
    with bound(job="team/first", attempt=2):
        logging.getLogger("a").info("Training.")
    assert stream.getvalue().endswith(" INFO [team/first 2] Training.\n")
