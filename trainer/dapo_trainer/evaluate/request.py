"""What is evaluated (a run, one of its checkpoints, or a model folder), and the evaluation as a job.

The job has the same fields, checks and configuration as validation in training.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJob, parse_job
from dapo_core.jobspec.base import has_scheme
from dapo_core.naming import API_VERSION, KIND
from dapo_core.run.home import Home
from dapo_trainer.checkpoint_tool.lookup import RunCheckpoints, find_checkpoints
from dapo_trainer.data.prompt_files import PromptFile
from dapo_trainer.data.sources import data_file

_CHECKPOINT = re.compile(r"/checkpoints/step-\d+(-attempt-\d+)?/?(\?.*)?$")


@dataclass(frozen=True)
class Checkpoint:
    """Where a checkpoint is; `step` None is the newest that is whole, `attempt` None the highest of the step."""

    store_url: str
    run_id: str
    step: int | None
    attempt: int | None = None


@dataclass(frozen=True)
class Target:
    """Either a `model` (a URI) or a `checkpoint`; `spec` is the run's job where it is known."""

    subject: str
    model: str | None = None
    checkpoint: Checkpoint | None = None
    spec: Mapping[str, Any] | None = None


def resolve(text: str, home: Home) -> Target:
    """`RUN`, `RUN@STEP`, a checkpoint's URI or folder, or a model's. Raises SpecError, UnknownRunError, StoreError."""
    subject = text
    if not has_scheme(text) and Path(text).expanduser().is_dir():
        subject = Path(text).expanduser().resolve().as_uri()
    if has_scheme(subject) and not _CHECKPOINT.search(subject):
        return _model(subject)
    found = find_checkpoints(subject, home)
    if not has_scheme(subject) and found.run is None and not _stored(found):
        _refuse(f"There is no run and no folder named {text}: name a run, RUN@STEP, a checkpoint or a model.")
    place = Checkpoint(found.checkpoints.store.url, found.checkpoints.run_id, found.step, found.attempt)
    return Target(subject, checkpoint=place, spec=None if found.run is None else found.run.spec.get("spec", {}))


def _stored(found: RunCheckpoints) -> bool:
    """Whether a run without a record has any object in the store."""
    return any(True for _ in found.checkpoints.store.list(f"{found.checkpoints.run_id}/"))


def _model(uri: str) -> Target:
    folder = Path(unquote(urlsplit(uri).path))
    if uri.startswith("file:") and not (folder / "config.json").is_file():
        _refuse(f"{folder} has no config.json: name a model in Hugging Face format or .../RUN/checkpoints/step-N.")
    return Target(uri, model=uri)


def _refuse(sentence: str) -> NoReturn:
    raise SpecError([Problem("TARGET", sentence)])


Tree = dict[str, Any]
# Fields of the job that options set.
_OPTIONS = {
    r"spec\.data\.validation\[\d+\]\.source": "--data",
    r"spec\.data\.train\[\d+\]\.source": "--data",
    r"spec\.data\.validation\[\d+\]\.name": "--data",
    r"spec\.data\.validation\[\d+\]\.temperature": "--temperature",
    r"spec\.data\.validation\[\d+\]\.topP": "--top-p",
    r"spec\.data\.maxPromptTokens": "--max-prompt-tokens",
    r"spec\.batch\.maxResponseTokens": "--max-response-tokens",
    r"spec\.reward\.(type|module|file)": "--reward",
    r"spec\.model\.dtype": "--dtype",
    r"spec\.topology\.rollout\.tensorParallel": "--tensor-parallel",
}
_ROLLOUT = "actor_rollout_ref.rollout."


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled: `samples` for each prompt. A limit of None is the run's own, else the paper's."""

    samples: int = 32
    temperature: float = 1.0
    top_p: float = 0.7
    seed: int = 0
    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None


@dataclass(frozen=True)
class Choices:
    """What may differ from the run: None keeps the run's. `gpus` 0 is on processors."""

    sampling: Sampling
    reward: str | None = None
    dtype: str | None = None
    gpus: int = 0
    tensor_parallel: int | None = None


def sets_of(given: Sequence[str], spec: Mapping[str, Any] | None) -> dict[str, str]:
    """Sources by name of set: `--data` as `FILE` or `NAME=FILE`, else the run's own. Raises SpecError."""
    if not given:
        own = {v["name"]: v["source"] for v in (spec or {}).get("data", {}).get("validation", ())}
        if not own:
            raise SpecError([Problem("--data", "There is no set to evaluate on: name a file with --data NAME=FILE.")])
        return own
    sets: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals:
            name, source = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(text).stem).strip("-_."), text
        if name in sets:
            raise SpecError([Problem("--data", f"--data {text}: there are two sets named {name}: write NAME=FILE.")])
        sets[name] = source if has_scheme(source) else Path(source).expanduser().resolve().as_uri()
    return sets


def job_of(target: Target, sets: Mapping[str, str], choices: Choices, model: str) -> DAPOJob:
    """The job that validates `model` (a URI) on `sets` and trains nothing. Raises SpecError for values out of range."""
    run, sampling = target.spec or {}, choices.sampling
    data, batch = run.get("data", {}), run.get("batch", {})
    validation = [
        {
            "name": name,
            "source": source,
            "samplesPerPrompt": sampling.samples,
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
        }
        for name, source in sets.items()
    ]
    spec = {
        "model": {"source": model, "dtype": choices.dtype or run.get("model", {}).get("dtype", "bfloat16")},
        # A job has training data; these files stand in for it, and nothing reads them as such.
        "data": {
            "train": [{"source": source} for source in sets.values()],
            "validation": validation,
            "seed": sampling.seed,
            **_chosen("maxPromptTokens", sampling.max_prompt_tokens, data),
        },
        "reward": _reward(choices.reward, run.get("reward", {})),
        # No penalty: accuracy never includes it, and its numbers belong to the run's own limit.
        "algorithm": {"preset": "grpo"},
        "batch": _chosen("maxResponseTokens", sampling.max_response_tokens, batch),
        "schedule": {"logSamplesEvery": 1},
        "topology": _topology(run.get("topology", {}), choices),
        "verlOverrides": {k: v for k, v in run.get("verlOverrides", {}).items() if k.startswith(_ROLLOUT)},
    }
    problems = list(_alike(sampling))
    try:
        job = parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "evaluation"}, "spec": spec})
    except SpecError as error:
        problems += dict.fromkeys(map(_in_options, error.problems))  # once, however many sets there are
    if problems:
        raise SpecError(problems)
    return job


def data_files(job: DAPOJob) -> list[PromptFile]:
    """The sets of an evaluation on this machine. Raises DataError naming `--data` and the remedy."""
    return [PromptFile("--data", v.name, data_file(v.source, "--data")) for v in job.spec.data.validation]


def _alike(sampling: Sampling) -> Iterator[Problem]:
    if not sampling.temperature and sampling.samples > 1:
        alike = f"--temperature is 0, which makes all {sampling.samples} samples equal"
        yield Problem("--temperature", f"{alike}: set --k 1, or a temperature above 0.")


def _in_options(problem: Problem) -> Problem:
    """The problem in terms of the options that were typed."""
    for field, option in _OPTIONS.items():
        if re.fullmatch(field, problem.field):
            return Problem(option, problem.message.replace(problem.field, option))
    return problem


def _chosen(name: str, value: int | None, run: Mapping[str, Any]) -> Tree:
    chosen = value if value is not None else run.get(name)
    return {} if chosen is None else {name: chosen}


def _reward(given: str | None, run: Mapping[str, Any]) -> Tree:
    if given is None:
        # The main reward alone says what is correct, and scores are not reported.
        return {name: value for name, value in run.items() if name != "additional"}
    where, colon, function = given.rpartition(":")
    if where.endswith(".py"):
        return {"type": "custom", "file": f"{Path(where).expanduser().resolve()}:{function}"}
    return {"type": "custom", "module": given} if colon else {"type": given}


def _topology(run: Mapping[str, Any], choices: Choices) -> Tree:
    """Engines of their own, as validation has them in `Separated` mode; no FSDP rank is started."""
    wide = choices.tensor_parallel or run.get("rollout", {}).get("tensorParallel", 1) if choices.gpus else 1
    rollout = {"replicas": 1, "gpusPerPod": choices.gpus, "tensorParallel": wide}
    return {"mode": "Separated", "trainer": {"replicas": 1, "gpusPerPod": 0}, "rollout": rollout}
