"""`dapo doctor`: what it makes of what it reads, and how it says so."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import job
from patience import patient
from typer.testing import CliRunner

from dapo_core.cli.main import app
from dapo_core.errors import DistributedFaultError, NodeUnfitError, SpecError
from dapo_core.run.last_words import LastWords
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.doctor import bandwidth, command, gpus, machine
from dapo_trainer.doctor.bandwidth import Bandwidth, Fabric, Group, RdmaDevice
from dapo_trainer.doctor.check import Check, CheckVerdict, failed, ok, warning
from dapo_trainer.doctor.command import Meeting
from dapo_trainer.doctor.examination import Machine
from dapo_trainer.pod import node

H100 = "0, NVIDIA H100 80GB HBM3, 580.65.06, 81559, 4, 0, Not Active, Not Active, 5, 16"


def gpu_line(**changes: str) -> str:
    names = ("index", "name", "driver", "memory", "used", "errors", "slowed", "hot", "bus", "lanes")
    return ", ".join((dict(zip(names, H100.split(", "), strict=True)) | changes).values())


def verdicts(checks: Iterator[Check]) -> dict[str, str]:
    return {check.name: check.verdict for check in checks if check.verdict != CheckVerdict.OK}


@pytest.mark.parametrize(
    ("lines", "wanted", "expected"),
    [
        pytest.param([H100], 1, {}, id="as it should be"),
        pytest.param([gpu_line(driver="535.104.05")], 1, {"driver": "failed"}, id="a driver too old for CUDA 13"),
        pytest.param([H100], 8, {"GPUs": "failed"}, id="one of eight"),
        pytest.param([gpu_line(errors="3")], 1, {"GPU memory errors": "failed"}, id="uncorrected errors"),
        pytest.param([gpu_line(errors="[N/A]")], 1, {}, id="a GPU without error correction"),
        pytest.param([gpu_line(hot="Active")], 1, {"GPU clocks": "warning"}, id="too hot"),
        pytest.param([gpu_line(used="40000")], 1, {"GPU memory": "warning"}, id="somebody else computes there"),
        pytest.param([H100, gpu_line(memory="40960")], 2, {"GPU memory": "warning"}, id="not all alike"),
        pytest.param([], 1, {"GPUs": "failed"}, id="none"),
    ],
)
def test_gpus_as_their_driver_reports_them(lines: list[str], wanted: int, expected: dict[str, str]) -> None:
    assert verdicts(gpus.checks(gpus.parse("\n".join(lines)), wanted, "13.0.3")) == expected


def test_no_driver_at_all() -> None:
    (check,) = gpus.checks(None, 1, "13.0")
    assert check.verdict == CheckVerdict.FAILED and "nvidia-smi does not answer" in check.found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", 0, id="no NVLink"),
        pytest.param(
            "GPU 0: H100\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\nGPU 1: H100\n\t Link 0: 26.562 GB/s",
            53,
            id="H100",
        ),
        pytest.param("GPU 0: A100\n\t Link 0: <inactive>\n\t Link 1: 25 GB/s", 25, id="a link that is down"),
    ],
)
def test_nvlink_of_a_gpu(text: str, expected: float) -> None:
    assert round(bandwidth.nvlink_gb(text)) == expected


@pytest.fixture
def infiniband(tmp_path: Path) -> Path:
    for name, state, rate in (
        ("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        ("mlx5_1", "1: DOWN", "400 Gb/sec (4X NDR)"),
        ("mlx5_2", "4: ACTIVE", "200 Gb/sec (4X HDR)"),
    ):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate}\n")
    return tmp_path


def test_active_rdma_ports_and_what_they_should_give(infiniband: Path) -> None:
    devices = bandwidth.rdma_devices(infiniband)
    assert [(device.name, device.gb) for device in devices] == [("mlx5_0", 50.0), ("mlx5_2", 25.0)]
    assert bandwidth.between(devices).gb == 37.5
    assert bandwidth.between([]) == Fabric("TCP", None)


@pytest.mark.parametrize(
    ("devices", "usable", "several", "expected"),
    [
        pytest.param([RdmaDevice("mlx5_0", 50)], True, True, "ok", id="there"),
        pytest.param([RdmaDevice("mlx5_0", 50)], False, True, "warning", id="not in the container"),
        pytest.param([], False, True, "warning", id="none"),
        pytest.param([], False, False, "ok", id="not needed"),
    ],
)
def test_rdma(devices: Sequence[RdmaDevice], usable: bool, several: bool, expected: str) -> None:
    assert bandwidth.rdma(devices, usable, several).verdict == expected


@pytest.mark.parametrize(
    ("outcome", "expected", "said"),
    [
        pytest.param(Bandwidth(300.0, True), "ok", "300.0 GB/s over NVLink", id="fast"),
        pytest.param(Bandwidth(20.0, True), "warning", "225 GB/s expected", id="slow"),
        pytest.param(Bandwidth(None, True, "unhandled system error"), "failed", "unhandled system error", id="broken"),
        pytest.param(
            Bandwidth(None, False), "warning", "did not answer at a:1 in 60 s", id="a pod that is not there yet"
        ),
    ],
)
def test_bandwidth_against_the_fabric(outcome: Bandwidth, expected: str, said: str) -> None:
    group = Group("cuda", 8, 2, 0, "a", 1)
    check = bandwidth.judge(bandwidth.BETWEEN, group, Fabric("NVLink", 225.0), outcome)
    assert check.verdict == expected and said in check.found
    assert expected == "ok" or check.remedy


@pytest.mark.parametrize(
    ("lines", "errors", "expected"),
    [
        pytest.param(['{"met": true}', '{"gb": 1.5}'], "warning: x", Bandwidth(1.5, True), id="measured"),
        pytest.param(['{"met": true}'], "Trace\nNCCL error\n", Bandwidth(None, True, "NCCL error"), id="failed"),
        pytest.param([], "timed out\n", Bandwidth(None, False, "timed out"), id="alone"),
        pytest.param([], "", Bandwidth(None, False, "no message"), id="killed"),
    ],
)
def test_what_a_process_printed(lines: list[str], errors: str, expected: Bandwidth) -> None:
    assert bandwidth.parse(lines, errors) == expected


@pytest.mark.parametrize(
    ("blocks", "free", "expected"),
    [
        pytest.param(16384, 16384, "failed", id="a container's 64 MiB"),
        pytest.param(4 << 20, 4 << 20, "ok", id="16 GiB"),
        pytest.param(4 << 20, 1000, "warning", id="taken"),
    ],
)
def test_shared_memory(blocks: int, free: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = type("Facts", (), {"f_blocks": blocks, "f_bavail": free, "f_frsize": 4096})
    monkeypatch.setattr(machine.os, "statvfs", lambda _: facts)
    assert machine.shared_memory().verdict == expected


@pytest.mark.parametrize(
    ("rdma", "locked", "may_lock", "expected"),
    [
        pytest.param(True, 65536, False, {"locked memory": "failed"}, id="RDMA without locked memory"),
        pytest.param(True, 65536, True, {}, id="with IPC_LOCK"),
        pytest.param(True, -1, False, {}, id="unlimited"),
        pytest.param(False, 65536, False, {}, id="no RDMA"),
    ],
)
def test_locked_memory(
    rdma: bool, locked: int, may_lock: bool, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rlimits = {machine.resource.RLIMIT_MEMLOCK: locked}
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (rlimits.get(which, 1 << 20), -1))
    monkeypatch.setattr(machine, "_may_lock", lambda: may_lock)
    assert verdicts(machine.limits(rdma)) == expected


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (1024, 1024))
    assert verdicts(machine.limits(False)) == {"open files": "warning", "processes": "warning"}


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in ((100 << 30, "ok"), (10 << 30, "warning"), (1 << 20, "failed")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert machine.disk(tmp_path / "a" / "b").verdict == expected


def test_a_host_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(name: str, _port: None) -> None:
        if name != "db.example":
            raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(machine.socket, "getaddrinfo", lookup)
    good, bad = machine.name_service(["db.example", "s3.example", "db.example"])
    assert (good.verdict, bad.verdict) == (CheckVerdict.OK, CheckVerdict.FAILED) and "s3.example" in bad.found


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        pytest.param([None, "sqlite:////tmp/dapo.db", "file:///store"], [], id="on this machine"),
        pytest.param(["postgresql://u:p@db.example:5432/dapo"], ["db.example"], id="Postgres"),
        pytest.param(["s3://bucket/a?endpoint=https://s3.example:9000&region=x"], ["s3.example"], id="an S3 server"),
    ],
)
def test_hosts_of_stores(urls: list[str | None], expected: list[str]) -> None:
    assert machine.hosts_of(*urls) == expected


def test_stores_that_answer_and_stores_that_do_not(tmp_path: Path) -> None:
    here = (tmp_path / "store").as_uri()
    found = {check.name: check.verdict for check in machine.stores(None, here, "doctor/")}
    assert found == {"metadata store": "skipped", "object store": "ok", "clock": "ok"}
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()], "nothing is left"
    (tmp_path / "file").write_text("")
    gone = machine.stores(f"sqlite:///{tmp_path}/none.db", (tmp_path / "file" / "store").as_uri(), "doctor/")
    assert verdicts(gone) == {"metadata store": "failed", "object store": "failed"}


@pytest.mark.parametrize("shift", [-60.0, 60.0], ids=["slow clock", "fast clock"])
def test_a_clock_that_differs_from_the_stores(shift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = machine.time.time
    monkeypatch.setattr(machine.time, "time", lambda: now() + shift)
    assert verdicts(machine.stores(None, tmp_path.as_uri(), "doctor/")) == {
        "metadata store": "skipped",
        "clock": "warning",
    }


# The command


def doctor(monkeypatch: pytest.MonkeyPatch, checks: Sequence[Check], *arguments: str) -> Any:
    monkeypatch.setattr(command, "examine", lambda _: iter(checks))
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200", "DAPO_DEVICE": "cpu"})


FINE, SLOW = ok("disk", "9 GB free"), warning("RDMA", "no device", "request RDMA devices")
BROKEN = failed("driver", "535, too old for CUDA 13.0", "install driver 580")


def test_a_remedy_on_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(monkeypatch, [FINE, SLOW, BROKEN])
    lines = [line for line in result.output.splitlines() if "driver" in line]
    assert any("failed" in line and "install driver 580" in line for line in lines)
    assert result.exit_code == 15
    assert doctor(monkeypatch, [FINE, SLOW]).exit_code == 0, "a warning is none"


def test_json_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(monkeypatch, [FINE, BROKEN], "--json")
    said = json.loads(result.output)
    assert said["node"] == socket.gethostname() and result.exit_code == 15
    assert said["checks"][1] == {
        "name": "driver",
        "verdict": "failed",
        "found": "535, too old for CUDA 13.0",
        "remedy": "install driver 580",
    }


@pytest.mark.parametrize(
    ("rendezvous", "nodes", "node", "expected"),
    [
        pytest.param(None, 1, 0, None, id="one machine"),
        pytest.param("a:29511", 2, 1, Meeting("a", 29511, 2, 1), id="two"),
    ],
)
def test_where_machines_meet(rendezvous: str | None, nodes: int, node: int, expected: Meeting | None) -> None:
    assert Meeting.of(rendezvous, nodes, node) == expected


@pytest.mark.parametrize(
    ("rendezvous", "nodes", "node"), [(None, 2, 0), ("a", 2, 0), ("a:x", 2, 0), ("a:1", 1, 0), ("a:1", 2, 2)]
)
def test_options_that_do_not_go_together(rendezvous: str | None, nodes: int, node: int) -> None:
    with pytest.raises(SpecError, match=r"--rendezvous is .*, --nodes \d, --node \d: name the first machine"):
        Meeting.of(rendezvous, nodes, node)


# In a pod

TWO_PODS = {"trainer": {"replicas": 2, "gpusPerPod": 8}}
POD = {
    "DAPO_ATTEMPT": "3",
    "DAPO_INDEX": "1",
    "DAPO_WORK_DIR": "/work",
    "DAPO_HEAD_ADDRESS": "first-head-3-0.first.team.svc:6379",
    "DAPO_NODE_NAME": "gpu-7",
}


def test_what_a_pod_needs_of_its_node() -> None:
    made = job(topology=TWO_PODS)
    trainer = node.machine(made, "trainer", POD)
    assert trainer == Machine(
        "cuda", 8, Path("/work"), peers=Group("cuda", 8, 2, 1, "first-trainer-3-0.first.team.svc", 29511, 120.0)
    )
    assert node.machine(made, "head", POD) == Machine("cuda", 0, Path("/work"))


@pytest.mark.parametrize(
    ("mode", "gpus_per_pod", "examined", "ends"),
    [("Require", 8, True, True), ("Warn", 8, True, False), ("Skip", 8, False, False), ("Require", 0, False, False)],
    ids=["required", "only warned of", "skipped", "a job on processors"],
)
def test_a_pod_on_an_unfit_node(mode: str, gpus_per_pod: int, examined: bool, ends: bool) -> None:
    made = job(topology={"trainer": {"gpusPerPod": gpus_per_pod}}, runPolicy={"preflight": mode})
    seen: list[Machine] = []

    def examine(target: Machine) -> list[Check]:
        seen.append(target)
        return [FINE, BROKEN]

    def check() -> None:
        node.check_node(made, "trainer", POD, examine)

    if ends:
        with pytest.raises(NodeUnfitError, match=r"^Node gpu-7 is unfit: driver: 535, too old for CUDA 13.0 \(install"):
            check()
    else:
        check()
    assert bool(seen) == examined


NCCL_FAILED = failed(bandwidth.BETWEEN, "failed over RDMA (NCCL error: unhandled system error)", "see docs")


@pytest.mark.parametrize(
    ("found", "error"),
    [([FINE, NCCL_FAILED], DistributedFaultError), ([BROKEN, NCCL_FAILED], NodeUnfitError)],
    ids=["any of the nodes", "this one"],
)
def test_a_sum_with_other_nodes_blames_none_of_them(found: list[Check], error: type[Exception]) -> None:
    """The operator avoids the nodes of pods that find theirs unfit, and takes NCCL in last words for a sign of it."""
    made = job(topology=TWO_PODS, runPolicy={"preflight": "Require"})
    with pytest.raises(error) as raised:
        node.check_node(made, "trainer", POD, lambda _: found)
    assert "node gpu-7" in str(raised.value) or "Node gpu-7" in str(raised.value)
    assert error is NodeUnfitError or "NCCL" not in str(raised.value)


@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_pod_without_its_gpus_ends_before_it_fetches_anything(role: str, tmp_path: Path) -> None:
    """The pod's own program, with an environment as the operator makes it, where the driver does not answer."""
    topology = {"mode": "Separated", "trainer": {"gpusPerPod": 8}, "rollout": {"gpusPerPod": 8}}
    made = job(topology=topology, model={"source": "s3://not-asked/model"})
    (tmp_path / "job.json").write_text(made.model_dump_json(by_alias=True, exclude_none=True))
    last_words = tmp_path / "termination-log"
    environment = POD | {
        "DAPO_JOB": str(tmp_path / "job.json"),
        "DAPO_WORK_DIR": str(tmp_path / "work"),
        "DAPO_READY_FILE": str(tmp_path / "ready"),
        "DAPO_TERMINATION_LOG": str(last_words),
        "DAPO_POD_IP": "127.0.0.1",
        "HOME": str(tmp_path / "home"),
        "PATH": str(tmp_path),  # no nvidia-smi
    }
    command = [sys.executable, "-m", "dapo_trainer.pod", role]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(60))
    assert ended.returncode == ExitCode.NODE_UNFIT, ended.stderr
    words = LastWords.parse(last_words.read_bytes())
    assert words is not None and words.reason == Reason.NODE_UNFIT
    assert words.message.startswith("Node gpu-7 is unfit: ") and "GPUs: nvidia-smi does not answer" in words.message
    assert "shared memory: " in ended.stderr and "disk: " in ended.stderr, "the log has every check"
    assert not (tmp_path / "work").exists() and not (tmp_path / "ready").exists()
