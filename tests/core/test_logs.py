"""`dapo logs`: from a local folder, from the cluster while a pod exists, and from the object store afterwards."""

import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dapo_core.cli import logs
from dapo_core.cli.log_reading import ClusterAnswer, LogFile, LogPrinter, LogRequest, as_text
from dapo_core.db import AttemptRow, RunRow, open_writer, upgrade
from dapo_core.errors import DapoError
from dapo_core.objectstore import FolderStore
from dapo_core.run.log_keys import PodLog

LOCAL, REMOTE = "arith-20261121-0412-x7k2", "math-20261121-0500-a2b3"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local run of two attempts, and one of a cluster whose logs are stored."""
    url, now = f"sqlite:///{tmp_path / 'dapo.db'}", time.time()
    upgrade(url)
    writer = open_writer(url)
    writer.create_run(RunRow(LOCAL, "arith", created_at=now))
    writer.create_run(RunRow(REMOTE, "math", namespace="team", created_at=now))
    for run in (LOCAL, REMOTE):
        for attempt in (1, 2):
            writer.start_attempt(AttemptRow(run, attempt, now))
            writer.end_attempt(run, attempt, reason="Killed", message="", exit_code=137, counted=True, ended_at=now)
    for attempt in (1, 2):
        (tmp_path / LOCAL / f"attempt-{attempt}").mkdir(parents=True)
        (tmp_path / LOCAL / f"attempt-{attempt}" / "trainer.log").write_text(f"local {attempt}\nlast {attempt}\n")
    store = FolderStore(tmp_path / "store")
    store.put_bytes(PodLog(1, "head", 0).key(REMOTE, 1), b"\x1b[36mdriver 1\x1b[0m\n")
    store.put_bytes(PodLog(2, "head", 0).key(REMOTE, 1), b"driver 2 \xe2\x82")
    store.put_bytes(PodLog(2, "head", 0).key(REMOTE, 2), b"\xac\nlast words")
    store.put_bytes(PodLog(2, "trainer", 1).key(REMOTE, 1), b"rank\x1b]0;title\x07\n")
    monkeypatch.setattr(logs, "entry_points", lambda _group: {})
    return tmp_path


def call(home: Path, *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(logs.logs)
    variables = {"DAPO_METADATA_URL": "", "DAPO_HOME": "", "DAPO_STORE_URL": ""}
    return CliRunner().invoke(app, [*arguments, "--home", str(home)], env=variables)


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["arith"], "local 2\nlast 2\n"),
        ([LOCAL, "--attempt", "1", "--tail", "1"], "last 1\n"),
        (["arith", "--tail", "0"], ""),
        (["arith", "--follow"], "local 2\nlast 2\n"),
        (["math"], "driver 2 €\nlast words\n"),
        (["math", "--follow"], "driver 2 €\nlast words\n"),
        (["math", "-n", "team", "--attempt", "1"], "driver 1\n"),
        (["math", "--role", "trainer", "--index", "1"], "rank�]0;title�\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_b31_a_log_is_printed(arguments: list[str], printed: str, home: Path) -> None:
    result = call(home, *arguments)
    assert (result.exception, result.output) == (None, printed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["arith", "--attempt", "7"], f"The local run {LOCAL} has one log for each attempt, .*: attempts 1, 2"),
        (["arith", "--role", "trainer"], "one log for each attempt, without --role and --index"),
        (
            ["math", "--role", "rollout"],
            "There is no log of attempt 2 rollout-0 in .*; it has attempt 1 head-0, attempt 2",
        ),
        (["nothing"], "There is no run 'nothing'"),
        (["math", "-n", "other"], "belongs to another namespace"),
        (["math", "--role", "driver"], "--role is driver: it must be one of head, trainer, rollout"),
    ],
    ids=["attempt", "role of a local run", "role", "unknown", "namespace", "no role"],
)
def test_b31_what_is_missing_is_named(arguments: list[str], said: str, home: Path) -> None:
    result = call(home, *arguments)
    assert isinstance(result.exception, DapoError)
    with pytest.raises(DapoError, match=said):
        raise result.exception


class Cluster:
    """In place of the entry point and of the cluster behind it."""

    def __init__(self, answer: ClusterAnswer) -> None:
        self.answer, self.asked = answer, list[LogRequest]()

    def load(self) -> "Cluster":
        return self

    def __call__(self, request: LogRequest, printer: LogPrinter) -> ClusterAnswer:
        self.asked.append(request)
        if self.answer.printed:
            printer.print([b"live\n"])
        return self.answer


@pytest.mark.parametrize(
    ("answer", "printed"),
    [
        (ClusterAnswer(True), "live\n"),
        (ClusterAnswer(False, REMOTE, "The pods are gone."), "driver 2 €\nlast words\n"),
    ],
    ids=["a pod that exists", "pods that are gone"],
)
def test_b31_pods_are_asked_first(
    answer: ClusterAnswer, printed: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(answer)
    monkeypatch.setattr(logs, "entry_points", lambda _group: {"kubernetes": cluster})
    assert call(home, "math", "-n", "team").output == printed
    assert cluster.asked == [LogRequest("math", "team", None, "head", 0, False, None)]
    # Neither database nor home is needed where the cluster knows the job.
    nowhere = call(home / "nowhere", "math", "--store", (home / "store").as_uri())
    assert nowhere.output == printed


def test_b31_a_growing_file_is_followed(tmp_path: Path) -> None:
    written = list[str]()
    printer, path = LogPrinter(written.append), tmp_path / "log"
    source = LogFile(path)
    for added in (b"", b"one\ntw", b"o\r50%\r100%\n", b"th"):
        with path.open("ab") as file:
            file.write(added)
        printer.print(source.read())
    printer.end()
    assert "".join(written) == "one\ntwo\n50%\n100%\nth\n"


@pytest.mark.parametrize(
    ("line", "expected"), [("\x1b[1;31mred\x1b[0m", "red"), ("\x1b]8;;http://x\x07", "�]8;;http://x�"), ("\udc80", "�")]
)
def test_b31_a_line_is_text(line: str, expected: str) -> None:
    assert as_text(line) == expected
