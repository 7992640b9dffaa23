"""`dapo evaluate` without an engine: what is named, what is asked of the worker, and what becomes of its answer."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import dumped, job
from typer.testing import CliRunner, Result

from dapo_core.cli.main import app
from dapo_core.cli.runs import UnknownRunError
from dapo_core.db import RunRow, open_reader, open_writer, upgrade
from dapo_core.errors import DapoError, DataError, ModelError, SpecError
from dapo_core.objectstore import FolderStore
from dapo_core.run.home import Home
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.evaluate import worker, worker_process
from dapo_trainer.evaluate.evaluation import subsets_of
from dapo_trainer.evaluate.request import Checkpoint, Choices, Sampling, Target, job_of, resolve, sets_of
from dapo_trainer.evaluate.worker_process import StoppedError
from dapo_trainer.groups.sample_log import read_samples

FAKE = Path(__file__).parent / "fakes" / "evaluating.py"
RUN = "arith-20261121-0412-x7k2"
Evaluate = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run of one checkpoint, a model, and a file of three prompts."""
    url = f"sqlite:///{tmp_path / 'dapo.db'}"
    upgrade(url)
    spec = dumped(
        job(
            model={"source": "hf://a/b", "dtype": "float32"},
            data={
                "train": [{"source": "file:///t.parquet"}],
                "validation": [{"name": "sums", "source": (tmp_path / "sums.jsonl").as_uri()}],
                "maxPromptTokens": 16,
            },
            reward={"type": "exact"},
            batch={"maxResponseTokens": 40},
            topology={"rollout": {"tensorParallel": 1}},
            verlOverrides={"actor_rollout_ref.rollout.max_num_seqs": 64, "trainer.balance_batch": False},
        )
    )
    open_writer(url).create_run(RunRow(RUN, "arith", spec=spec, created_at=1.0))
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "actor").mkdir(parents=True)
    (checkpoint / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"weights")
    CheckpointStore(FolderStore(tmp_path / "store"), RUN).commit(LocalCheckpoint(60, checkpoint, 1, "d"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    rows = [
        {
            "prompt": f"{n}+1?",
            "reward_model": {"ground_truth": str(n + 1)},
            "level": {"name": "hard" if n > 1 else "easy"},
        }
        for n in range(3)
    ]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.fixture
def evaluate(home: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    monkeypatch.setattr(worker_process.run_worker, "__defaults__", ((sys.executable, str(FAKE)),))
    monkeypatch.setenv("DAPO_DEVICE", "cpu")

    def call(*arguments: str, home: Path = home, **plan: Any) -> Result:
        monkeypatch.setenv("FAKE_EVALUATION", json.dumps(plan))
        return CliRunner().invoke(app, ["evaluate", *arguments, "--home", str(home)], env={"COLUMNS": "160"})

    return call


STORE = "file://{home}/store"


@pytest.mark.parametrize(
    ("text", "model", "checkpoint", "known"),
    [
        pytest.param(RUN, None, Checkpoint(STORE, RUN, None), True, id="a run"),
        pytest.param("arith", None, Checkpoint(STORE, RUN, None), True, id="a job's newest run"),
        pytest.param(f"{RUN}@60", None, Checkpoint(STORE, RUN, 60), True, id="a step of a run"),
        pytest.param(f"{STORE}/{RUN}/checkpoints/step-000060", None, Checkpoint(STORE, RUN, 60), True, id="a URI"),
        pytest.param(
            f"{{home}}/store/{RUN}/checkpoints/step-000060-attempt-1",
            None,
            Checkpoint(STORE, RUN, 60, 1),
            True,
            id="a folder",
        ),
        pytest.param("hf://Qwen/Qwen2.5-7B", "hf://Qwen/Qwen2.5-7B", None, False, id="a hub model"),
        pytest.param("{home}/model", "file://{home}/model", None, False, id="a model's folder"),
    ],
)
def test_what_is_evaluated(
    text: str, model: str | None, checkpoint: Checkpoint | None, known: bool, home: Path
) -> None:
    def here(value: str) -> str:
        return value.replace("{home}", str(home))

    found = resolve(here(text), Home.find(home))
    assert found.model == (None if model is None else here(model))
    assert found.checkpoint == (
        None if checkpoint is None else replace(checkpoint, store_url=here(checkpoint.store_url))
    )
    assert (found.spec is not None) == known


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        pytest.param("arithm", UnknownRunError, "There is no run 'arithm'; did you mean arith", id="no such run"),
        pytest.param("{home}", SpecError, "has no config.json", id="a folder without a model"),
    ],
)
def test_what_is_no_target(text: str, error: type[DapoError], sentence: str, home: Path) -> None:
    with pytest.raises(error, match=sentence):
        resolve(text.replace("{home}", str(home)), Home.find(home))


SPEC = {
    "model": {"dtype": "float32"},
    "data": {"maxPromptTokens": 16, "validation": [{"name": "own", "source": "file:///own.parquet"}]},
    "reward": {"type": "exact"},
    "batch": {"maxResponseTokens": 40},
    "topology": {"rollout": {"tensorParallel": 2}},
    "verlOverrides": {"actor_rollout_ref.rollout.max_num_seqs": 64, "trainer.balance_batch": False},
}


@pytest.mark.parametrize(
    ("spec", "choices", "expected"),
    [
        pytest.param(
            None,
            Choices(Sampling()),
            {
                "model.dtype": "bfloat16", "data.max_prompt_tokens": 2048, "batch.max_response_tokens": 20480,
                "reward.type": "math", "validation.samples_per_prompt": 32, "validation.temperature": 1.0,
                "validation.top_p": 0.7, "topology.rollout.gpus_per_pod": 0, "topology.rollout.tensor_parallel": 1,
            },
            id="the paper's defaults",
        ),
        pytest.param(
            SPEC,
            Choices(Sampling(8, 0.6, 0.95, 7), gpus=4),
            {
                "model.dtype": "float32", "data.max_prompt_tokens": 16, "batch.max_response_tokens": 40,
                "reward.type": "exact", "validation.samples_per_prompt": 8, "validation.temperature": 0.6,
                "validation.top_p": 0.95, "data.seed": 7, "topology.rollout.gpus_per_pod": 4,
                "topology.rollout.tensor_parallel": 2,
                "verl_overrides": {"actor_rollout_ref.rollout.max_num_seqs": 64},
            },
            id="as the run, where nothing else is said",
        ),
        pytest.param(
            SPEC,
            Choices(Sampling(max_prompt_tokens=99, max_response_tokens=9), "m:f", "float16", 8, 4),
            {
                "model.dtype": "float16", "data.max_prompt_tokens": 99, "batch.max_response_tokens": 9,
                "reward.type": "custom", "reward.module": "m:f", "topology.rollout.tensor_parallel": 4,
            },
            id="all of it said",
        ),
        pytest.param(
            SPEC | {"reward": {"answerRule": "published", "additional": [{"name": "a", "type": "exact"}]}},
            Choices(Sampling()),
            {"reward.label": "math/published", "reward.additional": ()},
            id="the main reward of a run that has several",
        ),
        pytest.param(
            SPEC,
            Choices(Sampling(), "/d/../e/score.py:judge"),
            {"reward.type": "custom", "reward.file": "/e/score.py:judge", "reward.label": "/e/score.py:judge"},
            id="a reward of a file",
        ),
    ],
)  # fmt: skip
def test_the_request_is_a_job(spec: dict[str, Any] | None, choices: Choices, expected: dict[str, Any]) -> None:
    asked = job_of(Target("x", spec=spec), {"aime": "file:///aime.parquet"}, choices, "file:///model").spec
    assert (asked.model.source, [v.name for v in asked.data.validation]) == ("file:///model", ["aime"])
    for path, wanted in expected.items():
        found: Any = asked
        for name in path.split("."):
            found = found.data.validation[0] if name == "validation" else getattr(found, name)
        assert found == wanted, path


def test_wrong_options_are_told_at_once_and_by_their_names() -> None:
    wrong = Choices(Sampling(temperature=0.0, top_p=2.0, max_prompt_tokens=0), "guess", "int8")
    with pytest.raises(SpecError) as refused:
        job_of(Target("x"), {"a": "file:///a", "b": "file:///b"}, wrong, "file:///model")
    assert [problem.message for problem in refused.value.problems] == [
        "--temperature is 0, which makes all 32 samples equal: set --k 1, or a temperature above 0.",
        '--dtype is "int8" but must be one of bfloat16, float16, float32.',
        "--top-p is 2.0 but must be at most 1.0.",
        "--max-prompt-tokens is 0 but must be at least 1.",
        '--reward is "guess" but must be one of math, exact, custom.',
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(["aime=/d/x.parquet"], {"aime": "file:///d/x.parquet"}, id="a name of its own"),
        pytest.param(["/d/AIME 24.parquet"], {"AIME-24": "file:///d/AIME%2024.parquet"}, id="the file's name"),
        pytest.param(["a=hf://datasets/o/n/f"], {"a": "hf://datasets/o/n/f"}, id="of the hub"),
        pytest.param([], {"own": "file:///own.parquet"}, id="the run's own"),
    ],
)
def test_sets(given: list[str], expected: dict[str, str]) -> None:
    assert sets_of(given, SPEC) == expected


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        pytest.param(["a=/x", "a=/y"], "two sets named a", id="two of one name"),
        pytest.param([], "name a file with --data", id="nothing to evaluate on"),
    ],
)
def test_sets_that_are_refused(given: list[str], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        sets_of(given, None)


def test_a_run_is_evaluated_told_and_recorded(evaluate: Evaluate, home: Path) -> None:
    result = evaluate(RUN, "--k", "4", "--subset", "level.name", right=1)
    assert result.exit_code == 0, result.output
    # 1, 2 and 3 of 4 are right.
    assert "sums  3 prompts x 4 samples" in result.output and "50.0%" in result.output
    assert [line.split()[:3] for line in result.output.splitlines() if line.startswith(("easy", "hard"))] == [
        ["easy", "2", "37.5%"],
        ["hard", "1", "75.0%"],
    ]
    (row,) = open_reader(f"sqlite:///{home / 'dapo.db'}").evaluations(RUN)
    assert (row.step, row.subject, row.set_name) == (60, RUN, "sums")
    assert row.results["pass_at"]["2"]["value"] == pytest.approx((0.5 + 5 / 6 + 1) / 3)
    assert row.results["subsets"]["hard"]["mean"] == {"value": 0.75, "low": None, "high": None}
    assert (row.sampling["samples"], row.sampling["maxResponseTokens"], row.sampling["reward"]) == (4, 40, "exact")
    shown = CliRunner().invoke(app, ["show", RUN, "--home", str(home)], env={"COLUMNS": "200"}).output
    assert "Evaluations" in shown and "3 x 4, temperature 1, top-p 0.7" in shown


def test_a_model_is_nobodys(evaluate: Evaluate, home: Path) -> None:
    arguments = (str(home / "model"), "--data", str(home / "sums.jsonl"), "--k", "2")
    result = evaluate(*arguments, "--responses", str(home / "said.parquet"), "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["run_id"], row["step"], row["subject"]) == (None, None, (home / "model").as_uri())
    assert [sample.response for sample in read_samples(FolderStore(home), "said.parquet")] == ["Answer: 2"]
    assert "mean@2" in CliRunner().invoke(app, ["show", str(home / "model"), "--home", str(home)]).output
    (work,) = (home / "evaluations").glob("*/attempt-1")
    assert not (work / "model").exists(), "what was fetched is gone"


def test_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^There is no run and no folder named base: name a run, RUN@STEP, a"):
        resolve("base", Home.find(tmp_path))


def test_a_home_without_runs_will_do(evaluate: Evaluate, home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    new = tmp_path_factory.mktemp("new")
    result = evaluate(str(home / "model"), "--data", str(home / "sums.jsonl"), "--k", "1", home=new)
    assert result.exit_code == 0, result.output
    assert len(open_reader(f"sqlite:///{new / 'dapo.db'}").evaluations()) == 1


def test_a_home_that_is_named_comes_before_the_environment(
    evaluate: Evaluate, home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"sqlite:///{tmp_path_factory.mktemp('other') / 'dapo.db'}"
    upgrade(other)
    monkeypatch.setenv("DAPO_METADATA_URL", other)
    result = evaluate(RUN, "--k", "1")
    assert result.exit_code == 0, result.output
    recorded = {url: len(open_reader(url).evaluations()) for url in (other, f"sqlite:///{home / 'dapo.db'}")}
    assert list(recorded.values()) == [0, 1]


@pytest.mark.parametrize(
    ("plan", "error", "sentence"),
    [
        pytest.param({"end": "words"}, ModelError, "The model is torn: download it again.", id="it says why"),
        pytest.param({"end": "crash"}, DapoError, "Segmentation fault of some engine", id="its log says why"),
    ],
)
def test_a_worker_that_fails(evaluate: Evaluate, home: Path, plan: dict[str, Any], error: type, sentence: str) -> None:
    result = evaluate(RUN, **plan)
    assert isinstance(result.exception, error) and sentence in str(result.exception)
    assert open_reader(f"sqlite:///{home / 'dapo.db'}").evaluations() == []


def test_mistakes_are_told_before_anything_starts(evaluate: Evaluate, home: Path) -> None:
    (home / "bad.jsonl").write_text(json.dumps({"prompt": "1+1?", "reward_model": {"ground_truth": ""}}))
    for arguments, sentence in (
        (["--data", str(home / "gone.parquet")], "does not exist"),
        (["--data", str(home / "bad.jsonl")], "row 0, column reward_model.ground_truth: it is empty"),
        (["--subset", "grade"], "has no such column; it has prompt, reward_model, level"),
    ):
        result = evaluate(RUN, *arguments)
        assert isinstance(result.exception, DataError) and sentence in str(result.exception)
    assert not list((home / "evaluations").glob("*/attempt-1/trainer.log"))


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        pytest.param({"max_position_embeddings": 55}, True, id="one token too short"),
        pytest.param({"max_position_embeddings": 56}, False, id="fits"),
        pytest.param({"max_position_embeddings": 55, "rope_scaling": {"type": "yarn"}}, False, id="scaled positions"),
    ],
)
def test_the_models_context_is_that_of_training(config: dict[str, Any], refused: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = job(data={"maxPromptTokens": 16}, batch={"maxResponseTokens": 40})
    if not refused:
        worker._check_context(made, tmp_path)
        return
    with pytest.raises(ModelError, match="more than the model's context of 55: set --max-prompt-tokens"):
        worker._check_context(made, tmp_path)


def test_a_field_that_is_missing_is_a_subset_of_its_own(home: Path) -> None:
    assert subsets_of(home / "sums.jsonl", "level.name", "sums") == ["easy", "easy", "hard"]
    assert subsets_of(home / "sums.jsonl", "level.age", "sums") == ["(none)"] * 3


def test_the_user_may_end_it(evaluate: Evaluate, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C once the worker is up: its processes end, and nothing is recorded."""
    from dapo_trainer.process.signals import StopRequest

    beats = iter(range(5))

    def asked(_: StopRequest) -> bool:
        return next(beats, None) is None

    monkeypatch.setattr(StopRequest, "asked", property(asked, lambda *_: None))
    result = evaluate(RUN, end="hang")
    assert isinstance(result.exception, StoppedError)
    assert open_reader(f"sqlite:///{home / 'dapo.db'}").evaluations() == []
