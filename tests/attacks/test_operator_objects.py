"""What a tenant writes into pods and DAPOJobs, against the operator's own entry points."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from builders import job as job_with
from hypothesis import given, settings
from hypothesis import strategies as st
from kopf._cogs.clients.api import iter_jsonlines
from kubernetes.aio.client import Configuration
from patience import patient
from planner_bench import SITE, raw_job
from virtual_time import now, run_virtual

from dapo_core.errors import SpecError
from dapo_core.jobspec import parse_job
from dapo_core.jobspec.leaves import MAX_LEVELS
from dapo_core.run.last_words import LastWords
from dapo_core.run.status import DAPOJobStatus
from dapo_operator.children import Children
from dapo_operator.executor import PODS_AT_ONCE, Executor, Refusals
from dapo_operator.jobs.actions import CreatePod, Plan
from dapo_operator.jobs.builders.pods import pod, template_problems
from dapo_operator.jobs.dapojob import job_of
from dapo_operator.jobs.observed import pod_of
from dapo_operator.kube import nesting
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import Connection
from dapo_operator.kube.informer import Informer
from dapo_operator.kube.objects import PODS, RefusedError
from dapo_operator.kube.rate_limit import RateLimit
from dapo_operator.telemetry.instrumentation import Telemetry

BRACKETS = "[" * 4000
# Also surrogates, NUL and terminal escapes.
TEXT = st.text(st.characters(codec=None), max_size=80)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
MESSAGES = st.one_of(
    TEXT,
    st.integers(1, 4096).map(lambda levels: "[" * levels),
    st.integers(1, 1300).map(lambda levels: '{"a":' * levels + "1" + "}" * levels),
    JSON.map(json.dumps),
    st.builds(lambda *said: json.dumps(dict(zip(("reason", "message", "step"), said, strict=True))), JSON, JSON, JSON),
    st.sampled_from(['{"reason":"X","step":1e999}', '{"reason":"X","message":"\\ud800"}', '{"reason":"X","step":-1}']),
)


def ended(message: str) -> dict[str, Any]:
    labels = {"dapo.io/job": "x", "dapo.io/role": "head", "dapo.io/attempt": "1", "dapo.io/index": "0"}
    state = {"terminated": {"exitCode": 1, "message": message}}
    meta = {"name": "p", "namespace": "b", "uid": "u", "resourceVersion": "1", "labels": labels}
    return {"metadata": meta, "status": {"phase": "Failed", "containerStatuses": [{"name": "dapo", "state": state}]}}


def test_a01_brackets_as_a_termination_message() -> None:
    read = pod_of(ended(BRACKETS))
    assert read is not None and read.words is not None
    assert read.words.reason == "" and read.words.message == "[" * 500


@given(MESSAGES)
@settings(max_examples=300, deadline=None)
def test_a01_a19_any_termination_message(message: str) -> None:
    read = pod_of(ended(message))
    assert read is not None
    if read.words is not None:
        read.words.message.encode()
        assert len(read.words.reason) <= 64 and read.words.reason.isascii()
        assert read.words.step is None or 0 <= read.words.step < 2**53


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"reason": "X" * 3900, "message": "m"}, LastWords("Crashed", "m")),
        ({"reason": 'a"} 1\n', "message": "m"}, LastWords("Crashed", "m")),
        ({"reason": "BadData", "message": "\ud800\x1b[2J\0"}, LastWords("BadData", "\ufffd\ufffd[2J\ufffd")),
    ],
    ids=["long reason", "reason of symbols", "surrogates and escapes"],
)
def test_a19_last_words_are_cleaned(said: dict[str, Any], read: LastWords) -> None:
    assert LastWords.parse(json.dumps(said)) == read


def test_a01_one_object_never_ends_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever else cannot be understood: the informer goes on, and the others are known."""

    class Server:
        async def pages(self, *_: Any) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
            yield [bad, good], "5"

        async def watch(self, *_: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
            yield "MODIFIED", bad
            yield "DELETED", bad
            yield "ADDED", late
            await asyncio.sleep(3600)

    bad, good, late = ended("x"), ended("y"), ended("z")
    for name, one in (("bad", bad), ("good", good), ("late", late)):
        one["metadata"] = {**one["metadata"], "name": name, "uid": name}
    bad["metadata"]["deletionTimestamp"] = "soon"
    children = Children(lambda key: None)

    async def watch() -> None:
        task = asyncio.create_task(Informer(Server(), PODS, None, "", children.pods).run())  # type: ignore[arg-type]
        async with asyncio.timeout(patient(10)):
            while len(children.pods.of(("b", "x"))) < 2:
                await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.ERROR):
        asyncio.run(watch())
    assert set(children.pods.of(("b", "x"))) == {"good", "late"}
    assert "b/bad" in caplog.text


def nested(levels: int) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for _ in range(levels):
        tree = {"a": tree}
    return tree


def deep_job(levels: int) -> bytes:
    """A DAPOJob as the API server gives it; json.dumps gives up at a thousand levels as well."""
    raw = {
        "apiVersion": "dapo.io/v1alpha1",
        "kind": "DAPOJob",
        "metadata": {"name": "deep", "namespace": "b", "uid": "u", "resourceVersion": "7"},
        "spec": {"topology": {"head": {"podTemplate": "HERE"}}},
    }
    return json.dumps(raw).encode().replace(b'"HERE"', b'{"a":' * levels + b'"\\"]}{["' + b"}" * levels)


@pytest.mark.parametrize("levels", [MAX_LEVELS, 90, 200, 980, 1500, 9000])
def test_a02_a_deeply_nested_job_gets_a_sentence(levels: int) -> None:
    read = job_of(nesting.parse(deep_job(levels)), SITE)
    sentence = "spec.topology.head.podTemplate is nested more than 64 levels deep; reduce its nesting."
    assert [problem.message for problem in read.problems] == [sentence]


def test_a02_a_job_of_some_levels_is_as_valid_as_before() -> None:
    with pytest.raises(SpecError) as error:
        parse_job(nesting.parse(deep_job(MAX_LEVELS - 5)))
    assert "nested" not in str(error.value)


def test_a17_a_job_of_a_megabyte_is_refused_before_it_is_parsed() -> None:
    spec = {"topology": {"head": {"podTemplate": {"metadata": {"annotations": {"a": "x" * 900_000}}}}}}
    read = job_of({**raw_job("large"), "spec": spec}, SITE)
    assert read.parsed is None
    [problem] = read.problems
    assert "bytes as JSON, and may have 262,144: shorten its podTemplates" in problem.message


@pytest.mark.parametrize("levels", [500, 5000], ids=["for a copy", "for a parser"])
def test_a02_kopf_reads_lists_and_watches_with_a_job_too_deep(levels: int) -> None:
    deep = deep_job(levels)
    small = b'{"metadata":{"name":"other"}}'

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            body = b'{"type":"ADDED","object":' + deep + b'}\n{"type":"ADDED","object":' + small + b"}\n"
        else:
            body = b'{"items":[' + deep + b"," + small + b"]}"
        return web.Response(body=body, content_type="application/json")

    async def ask() -> None:
        app = web.Application()
        app.router.add_get("/jobs", answer)
        async with TestServer(app) as server:
            kube = KubeClient(Connection(Configuration(host=str(server.make_url("")))))
            async with kube.open_session() as session:
                async with session.get(server.make_url("/jobs")) as response:
                    listed = await response.json()
                async with session.get(server.make_url("/jobs?watch=true")) as response:
                    events = [json.loads(line) async for line in iter_jsonlines(response.content)]
            await kube.close()
        assert [item["metadata"]["name"] for item in deepcopy(listed)["items"]] == ["deep", "other"]
        assert [event["object"]["metadata"]["name"] for event in deepcopy(events)] == ["deep", "other"]

    asyncio.run(ask())


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_a02_pruning_leaves_shallow_json_as_it_is(value: Any) -> None:
    data = json.dumps([value] * 60).encode()
    assert nesting.pruned(data) == data


@given(st.lists(st.sampled_from(['{"a":', "["]), max_size=400), TEXT)
@settings(max_examples=200, deadline=None)
def test_a02_pruned_json_is_json_of_at_most_so_many_levels(opened: list[str], text: str) -> None:
    closed = "".join("}" if each == '{"a":' else "]" for each in reversed(opened))
    data = f"[{''.join(opened)}{json.dumps(text)}{closed}, {json.dumps(text)}]".encode()
    value = json.loads(nesting.pruned(data))
    assert value[1] == text
    level, tree = 0, value
    while isinstance(tree, list | dict):
        level, tree = level + 1, tree[0] if isinstance(tree, list) else tree["a"]
    assert level == min(len(opened) + 1, nesting.MAX_LEVELS)


@pytest.mark.parametrize(
    "container",
    [
        {"name": "dapo", "volumeMounts": [{"mountPath": {"a": "b"}, "name": "x"}]},
        {"name": "dapo", "ports": [{"containerPort": [1]}]},
        {"name": "dapo", "env": [{"name": "A", "value": {"a": []}}]},
    ],
    ids=["mount path", "port", "variable"],
)
def test_d_a_template_of_wrong_types_is_left_to_the_api_server(container: dict[str, Any]) -> None:
    made = job_with(topology={"trainer": {"podTemplate": {"spec": {"containers": [container]}}}})
    template_problems(made, SITE)
    assert pod(made, "uid", "run", "trainer", 1, 0, SITE)


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_d_any_pod_template_gives_pods_or_problems(template: Any) -> None:
    spec = {"containers": [{"name": "dapo", "volumeMounts": [template], "ports": [template], "resources": template}]}
    made = job_with(topology={"trainer": {"podTemplate": {"spec": spec}}})
    template_problems(made, SITE)


def test_a19_reasons_that_a_pod_makes_up_are_one_label() -> None:
    telemetry = Telemetry()
    for reason in ("BadData", "MadeUp1", "MadeUp2"):
        telemetry.restarted(reason)
    counted = {sample.labels["reason"] for metric in telemetry.metrics.restarts.collect() for sample in metric.samples}
    assert counted == {"BadData", "Other"}


def _request(path: str) -> Any:
    return SimpleNamespace(url=SimpleNamespace(path=path))


def test_a08_doubt_2_a_namespace_of_thousands_of_requests_delays_no_other() -> None:
    answered: list[str] = []

    async def handler(request: Any) -> Any:
        answered.append(request.url.path)
        return SimpleNamespace(status=200)

    async def ask() -> None:
        limit = RateLimit(100, 200, clock=now)
        of_b = [asyncio.create_task(limit(_request("/api/v1/namespaces/b/pods"), handler)) for _ in range(6000)]
        await asyncio.sleep(10)
        began = now()
        await limit(_request("/apis/dapo.io/v1alpha1/namespaces/a/dapojobs/x/status"), handler)
        assert now() - began < 2
        await asyncio.gather(*of_b)

    run_virtual(ask())
    assert len(answered) == 6001, "and those of b are all served"


def test_a08_waiting_for_its_turn_is_no_time_of_the_request() -> None:
    async def handler(request: Any) -> Any:
        return SimpleNamespace(status=200)

    async def silent(request: Any) -> Any:
        await asyncio.sleep(3600)

    async def ask() -> None:
        limit = RateLimit(0.1, 1, clock=now)
        for _ in range(10):
            await limit(_request("/api/v1/namespaces/a/pods"), handler)
        assert now() == 1090
        with pytest.raises(TimeoutError):
            await limit(_request("/api/v1/namespaces/a/pods"), silent)
        with pytest.raises(TimeoutError):
            await limit(_request("/apis/coordination.k8s.io/v1/namespaces/dapo/leases/x"), silent)

    run_virtual(ask())


def test_a08_a_gang_that_a_quota_refuses_is_not_asked_for_to_its_end() -> None:
    asked: list[str] = []

    class Full:
        async def create(self, resource: Any, body: Any, dry_run: bool = False) -> Any:
            asked.append(body["metadata"]["name"])
            raise RefusedError("exceeded quota: gpus", 403, "Forbidden")

    made = job_of(raw_job("big"), SITE)
    pods = tuple(CreatePod({"kind": "Pod", "metadata": {"name": f"p{n}", "namespace": "b"}}) for n in range(2001))
    plan = Plan(DAPOJobStatus(), pods)
    executor = Executor(Full(), Children(lambda key: None))  # type: ignore[arg-type]
    done = asyncio.run(executor.act(("b", "big"), made, plan, 0.0, Refusals()))
    assert len(asked) == PODS_AT_ONCE and done.created == 0
    assert done.refusal is not None and done.refusal.kind == "quota"
