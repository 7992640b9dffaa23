"""What `dapo chaos` does to a job on a cluster: requests to the API server, about this job's pods and nothing else."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from dapo_core.cli.chaos import NoTargetError
from dapo_core.naming import Role, child_labels, child_name
from dapo_core.run.fault_plan import FaultKind, PlannedFault
from dapo_operator.job_faults import RIGHTS, JobOnCluster, network_policy
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import Connection
from dapo_operator.kube.objects import RefusedError, UnreachableError

T = TypeVar("T")
HOME = "/api/v1/namespaces/team/pods"
JOB = "/apis/dapo.io/v1alpha1/namespaces/team/dapojobs/math"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies"
SUCCESS = json.dumps({"status": "Success"}).encode()


def ended(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()


def pod(role: Role, index: int, attempt: int = 2, phase: str = "Running", **meta: Any) -> dict[str, Any]:
    name, labels = child_name("math", role, attempt, index), child_labels("math", "run", role, attempt, index)
    own = {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": [{"uid": "uid-math"}]}
    return {"metadata": {**own, **meta}, "status": {"phase": phase}}


@dataclass
class Server:
    """An API server that answers about one job and notes what it is asked to do. `exec_answer` is the Status with which
    commands in containers end; None: the connection ends before."""

    pods: list[dict[str, Any]] = field(default_factory=list)
    rollouts: dict[str, int] = field(default_factory=lambda: {"replicas": 2})
    status: dict[str, Any] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    exec_answer: bytes | None = SUCCESS
    prints: tuple[bytes, ...] = (b"1\n",)
    hangs: bool = False
    asked: list[tuple[str, str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/exec"):
            return await self._exec(request)
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        if request.path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            what = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return web.json_response({"status": {"allowed": what not in self.refused}}, status=201)
        if request.method == "GET" and request.path == HOME:
            assert request.query["labelSelector"] == "dapo.io/job=math"
            return web.json_response({"items": self.pods, "metadata": {"resourceVersion": "7"}})
        if request.path == JOB:
            if request.method == "PATCH":
                self.rollouts |= body["spec"]["topology"]["rollout"]
                self.asked.append(("PATCH", "job", self.rollouts["replicas"]))
            spec = {"topology": {"rollout": self.rollouts}}
            return web.json_response({"metadata": {"uid": "uid-math"}, "spec": spec, "status": self.status})
        if request.method in ("POST", "DELETE") and request.path.startswith((HOME, POLICIES)):
            self.asked.append((request.method, request.path, body))
            return web.json_response({})
        return web.json_response({"message": "not found"}, status=404)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        if "pods/exec" in self.refused:
            return web.json_response({"message": "forbidden"}, status=403)
        self.asked.append(("EXEC", request.path, request.query.getall("command")))
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        for part in self.prints:
            await socket.send_bytes(b"\x01" + part)
        if self.hangs:
            await socket.receive()
            return socket
        if self.exec_answer is not None:
            await socket.send_bytes(b"\x03" + self.exec_answer)
        await socket.close()
        return socket

    def of(self, act: Callable[[JobOnCluster], Awaitable[T]]) -> T:
        """What `act` returns with the job as its target."""

        async def run() -> T:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self.answer)
            async with TestServer(app) as server:
                kube = KubeClient(Connection(Configuration(host=str(server.make_url("")).rstrip("/"))))
                try:
                    return await act(JobOnCluster(kube, "team", "math"))
                finally:
                    await kube.close()

        return asyncio.run(run())


def fault(kind: FaultKind, role: Role | None = "rollout", draw: float = 0.0) -> PlannedFault:
    return PlannedFault(0.0, kind, role, draw)


PODS = [
    pod("rollout", 0, attempt=1),
    pod("head", 0),
    pod("rollout", 0, phase="Failed"),
    pod("rollout", 1, deletionTimestamp="2026-11-21T08:00:00Z"),
    pod("rollout", 2),
    pod("rollout", 3),
    pod("rollout", 4, phase="Pending"),
]


@pytest.mark.parametrize(
    ("draw", "hit"), [(0.0, "math-rollout-2-2"), (0.99, "math-rollout-2-3")], ids=["the first", "the last"]
)
def test_only_running_pods_of_the_newest_attempt_are_hit(draw: float, hit: str) -> None:
    server = Server(PODS)
    assert server.of(lambda job: job.inject(fault(FaultKind.KILL, draw=draw))) == hit
    ((method, path, body),) = server.asked
    assert (method, path) == ("DELETE", f"{HOME}/{hit}")
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": f"uid-{hit}"}, 0)


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param({"ownerReferences": []}, id="nobody's"),
        pytest.param({"ownerReferences": None}, id="null"),
        pytest.param({"ownerReferences": [{"uid": "uid-other"}]}, id="another job's"),
    ],
)
def test_e3_a_pod_with_the_jobs_labels_is_not_the_jobs(foreign: dict[str, Any]) -> None:
    """Whoever may create pods can label one of another team that shares the namespace."""
    server = Server([pod("rollout", 0, attempt=9, **foreign), pod("rollout", 5)])
    assert server.of(lambda job: job.inject(fault(FaultKind.KILL))) == "math-rollout-2-5"
    with pytest.raises(NoTargetError, match="no rollout runs"):
        Server([pod("rollout", 0, **foreign)]).of(lambda job: job.inject(fault(FaultKind.KILL)))


@pytest.mark.parametrize("attempt", ["x", "", "-1"])
def test_e3_a_label_that_is_no_number_ends_no_storm(attempt: str) -> None:
    odd = pod("rollout", 0)
    odd["metadata"]["labels"]["dapo.io/attempt"] = attempt
    server = Server([odd, pod("rollout", 5)])
    assert server.of(lambda job: job.inject(fault(FaultKind.KILL))) == "math-rollout-2-5"


def test_e3_an_image_decides_neither_how_much_is_read_nor_for_how_long() -> None:
    """What it has in the place of python3 prints for ever, or never ends."""
    flood = tuple(b"x" * 2**20 for _ in range(8))
    code, said = Server(PODS, prints=flood).of(lambda job: job.kube.execute("team", "p", "dapo", ["python3"], 30.0))
    assert code == 0 and len(said) < 10_000
    with pytest.raises(UnreachableError, match="exec in p broke off: TimeoutError"):
        Server(PODS, hangs=True).of(lambda job: job.kube.execute("team", "p", "dapo", ["python3"], 0.2))


def test_a_drain_is_an_eviction_of_this_very_pod() -> None:
    server = Server(PODS)
    server.of(lambda job: job.inject(fault(FaultKind.DRAIN)))
    ((_, path, body),) = server.asked
    assert path == f"{HOME}/math-rollout-2-2/eviction"
    assert body["deleteOptions"]["preconditions"] == {"uid": "uid-math-rollout-2-2"}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (FaultKind.WEDGE, ["engine", "150", "1"]),
        (FaultKind.PARTITION, ["all", "60", "1"]),
        (FaultKind.SLOW, ["all", "60", "0.5"]),
    ],
)
def test_processes_are_stopped_in_the_container(kind: FaultKind, arguments: list[str]) -> None:
    server = Server(PODS)
    server.of(lambda job: job.inject(fault(kind)))
    ((_, path, command),) = server.asked
    assert path == f"{HOME}/math-rollout-2-2/exec"
    assert command[:2] == ["python3", "-c"] and command[3:] == arguments


@pytest.mark.parametrize(
    ("server", "hit", "why"),
    [
        (Server([]), fault(FaultKind.KILL), "no rollout runs"),
        (Server(PODS, exec_answer=ended(3)), fault(FaultKind.WEDGE), "math-rollout-2-2 has no engine"),
        (Server(PODS, exec_answer=ended(127)), fault(FaultKind.WEDGE), "exec in math-rollout-2-2 ended with 127: 1"),
        (Server(PODS, exec_answer=None), fault(FaultKind.WEDGE), "exec in math-rollout-2-2 did not say how it ended"),
        (Server(PODS, refused={"pods/exec"}), fault(FaultKind.WEDGE), "exec in math-rollout-2-2 was refused: HTTP 403"),
        (Server(PODS, rollouts={"replicas": 1}), fault(FaultKind.SCALE), "the job has 1 of at least 1 rollouts"),
        (Server(PODS, {"replicas": 2, "minReplicas": 2}), fault(FaultKind.SCALE), "has 2 of at least 2 rollouts"),
    ],
    ids=["no pod", "no engine", "no Python", "cut off", "refused", "the last rollout", "all required"],
)  # fmt: skip
def test_what_cannot_be_hit_is_no_error_of_the_storm(server: Server, hit: PlannedFault, why: str) -> None:
    with pytest.raises(NoTargetError) as refused:
        server.of(lambda job: job.inject(hit))
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "role"), [(FaultKind.SCALE, "rollout"), (FaultKind.STORE, None)], ids=["scaling", "the stores"]
)
def test_what_is_in_effect_is_ended_once_and_no_two_overlap(kind: FaultKind, role: Role | None) -> None:
    server = Server(PODS)

    async def twice(job: JobOnCluster) -> None:
        await job.inject(fault(kind, role))
        with pytest.raises(NoTargetError, match="still in effect"):
            await job.inject(fault(kind, role))
        await job.restore()
        await job.restore()

    server.of(twice)
    if kind is FaultKind.SCALE:
        assert [count for *_, count in server.asked] == [1, 2]
    else:
        (made, path, body), (removed, where, _) = server.asked
        assert (made, path, removed, where) == ("POST", POLICIES, "DELETE", f"{POLICIES}/math-chaos")
        assert body == network_policy("math", "team", "uid-math")


def test_the_policy_of_an_outage_selects_this_jobs_pods_and_goes_with_the_job() -> None:
    policy = network_policy("math", "team", "uid-math")
    own = {"matchLabels": {"dapo.io/job": "math"}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert policy["spec"]["egress"][0] == {"to": [{"podSelector": own}]}
    assert policy["metadata"]["ownerReferences"][0]["uid"] == "uid-math"


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_missing_right_is_named_before_anything_is_done(kind: FaultKind) -> None:
    _, _, resource, subresource = RIGHTS[kind][0]
    what = "/".join(filter(None, (resource, subresource)))
    server = Server(PODS, refused={what})
    with pytest.raises(NoTargetError, match=f"--kind {kind} needs `.*` of {what}"):
        server.of(lambda job: job.check(frozenset(FaultKind)))
    assert server.asked == []
    Server(PODS).of(lambda job: job.check(frozenset({kind})))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Suspended"])
def test_a_job_without_pods_is_refused(phase: str) -> None:
    with pytest.raises(NoTargetError, match=f"team/math is {phase}: it has no pods to hit"):
        Server(status={"phase": phase}).of(lambda job: job.check(frozenset()))


def test_a_job_that_is_not_there_is_named() -> None:
    async def other(job: JobOnCluster) -> None:
        job.job = "biology"
        await job.check(frozenset())

    with pytest.raises(NoTargetError, match="Namespace team has no DAPOJob biology"):
        Server().of(other)


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        ({}, (0, None, "Pending", False)),
        ({"phase": "Training", "pods": "4/4", "attempt": 2, "progress": {"step": 7}}, (2, 7, "Training", True)),
        ({"phase": "Training", "pods": "3/4", "attempt": 2}, (2, None, "Training", False)),
        ({"phase": "Starting", "pods": "4/4", "attempt": 2}, (2, None, "Starting", False)),
    ],
    ids=["new", "whole", "a rollout is missing", "starting"],
)
def test_what_is_seen_of_a_job(status: dict[str, Any], seen: tuple[int, int | None, str, bool]) -> None:
    sight = Server(status=status).of(lambda job: job.look())
    assert (sight.attempt, sight.step, sight.phase, sight.whole) == seen


@pytest.mark.parametrize(
    ("answer", "refused", "error", "code"),
    [
        pytest.param(SUCCESS, set(), None, 0, id="done"),
        pytest.param(ended(7), set(), None, 7, id="failed"),
        pytest.param(b"", set(), UnreachableError, 0, id="no verdict"),
        pytest.param(None, {"pods/exec"}, RefusedError, 0, id="refused"),
    ],
)
def test_a_command_in_a_container(
    answer: bytes | None, refused: set[str], error: type[Exception] | None, code: int
) -> None:
    server = Server(PODS, refused=refused, exec_answer=answer)

    async def execute(job: JobOnCluster) -> tuple[int, str]:
        return await job.kube.execute("team", "math-head-2-0", "dapo", ["echo", "a b&c"], 30.0)

    if error is not None:
        with pytest.raises(error):
            server.of(execute)
        return
    assert server.of(execute) == (code, "1\n")
    assert server.asked[0][2] == ["echo", "a b&c"]
