"""One call of `dapo evaluate`: resolved, checked, run and recorded."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dapo_core.db import EvaluationRow, open_writer, upgrade
from dapo_core.errors import DataError
from dapo_core.jobspec import DAPOJob
from dapo_core.naming import new_run_id
from dapo_core.run.home import Home
from dapo_trainer.evaluate.request import Choices, Target, data_files, job_of, resolve, sets_of
from dapo_trainer.evaluate.statistics import Summary, by_subset, summarise
from dapo_trainer.evaluate.worker_process import EvaluationFolder, run_worker
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.preflight import check_files, check_reward
from dapo_trainer.process.run_folder import RunFolder
from dapo_trainer.process.trainer_process import StoreUrls

Results = Mapping[str, tuple[Summary, Mapping[str, Summary]]]


@dataclass(frozen=True)
class Evaluation:
    """How `dapo evaluate` was called; `subset` is a column or None."""

    home: Home
    choices: Choices
    subset: str | None

    def run(self, text: str, data: Sequence[str], console: Console, responses: Path | None) -> "EvaluationOutcome":
        """Returns the outcome, which is not recorded yet. Raises DapoError for whatever prevents it."""
        target = resolve(text, self.home)
        folder = RunFolder(self.home.path / "evaluations" / new_run_id("evaluation"))
        files = EvaluationFolder.of(folder.attempt(1).path)
        job = job_of(target, sets_of(data, target.spec), self.choices, target.model or files.model.as_uri())
        subsets = self._check(job)
        if self.home.metadata is None:
            upgrade(self.home.metadata_url)
        folder.write_job(job)
        files.write_request(target.checkpoint)
        try:
            run_worker(folder, StoreUrls(self.home.metadata_url, self.home.store_url), console)
        finally:
            shutil.rmtree(files.model, ignore_errors=True)
            shutil.rmtree(files.path / "data", ignore_errors=True)
        if responses is not None:
            shutil.copyfile(files.responses, responses)
        step, groups = files.read_groups()
        results = {name: _results(name, groups, subsets.get(name)) for name in _names(job)}
        return EvaluationOutcome(_rows(folder.run_id, target, step, job, results), results)

    def record(self, outcome: "EvaluationOutcome") -> None:
        """Raises StoreError."""
        with closing(open_writer(self.home.metadata_url)) as writer:
            writer.add_evaluations(outcome.rows)

    def _check(self, job: DAPOJob) -> Mapping[str, Sequence[str]]:
        """Refuse what can be refused before anything is fetched. Returns each row's subset by set, if requested."""
        check_reward(job.spec)
        sets = data_files(job)
        check_files(job.spec, sets)
        if self.subset is None:
            return {}
        return {file.set_name: subsets_of(file.path, self.subset, file.set_name) for file in sets}


@dataclass(frozen=True)
class EvaluationOutcome:
    """The results by set: as they are stored, and as numbers."""

    rows: Sequence[EvaluationRow]
    results: Results


def _names(job: DAPOJob) -> list[str]:
    return [one.name for one in job.spec.data.validation]


def _results(
    name: str, groups: Sequence[Evaluated], subsets: Sequence[str] | None
) -> tuple[Summary, Mapping[str, Summary]]:
    in_order = sorted((group for group in groups if group.set_name == name), key=lambda group: group.index)
    return summarise(in_order), by_subset(in_order, subsets) if subsets is not None else {}


def _rows(evaluation_id: str, target: Target, step: int | None, job: DAPOJob, results: Results) -> list[EvaluationRow]:
    spec, now = job.spec, time.time()
    return [
        EvaluationRow(
            evaluation_id=evaluation_id,
            set_name=one.name,
            subject=target.subject,
            run_id=target.checkpoint.run_id if target.checkpoint else None,
            step=step,
            created_at=now,
            source=one.source,
            sampling={
                "samples": one.samples_per_prompt,
                "temperature": one.temperature,
                "topP": one.top_p,
                "maxPromptTokens": spec.data.max_prompt_tokens,
                "maxResponseTokens": spec.batch.max_response_tokens,
                "seed": spec.data.seed,
                "dtype": spec.model.dtype,
                "reward": spec.reward.label,
            },
            results=stored(*results[one.name]),
        )
        for one in spec.data.validation
    ]


def stored(summary: Summary, subsets: Mapping[str, Summary]) -> dict[str, Any]:
    """A summary as JSON, its subsets within it."""
    return {**_plain(summary), "subsets": {name: _plain(one) for name, one in subsets.items()}}


def _plain(summary: Summary) -> dict[str, Any]:
    fields = asdict(summary)
    return {**fields, "pass_at": {str(k): estimate for k, estimate in fields["pass_at"].items()}}


def subsets_of(path: Path, column: str, set_name: str) -> list[str]:
    """The subset of every row, in the file's order; `column` may be dotted (`extra_info.level`).

    Raises DataError when the file has no such column, naming those that it has.
    """
    from pyarrow import json, parquet

    table = json.read_json(path) if path.suffix in {".json", ".jsonl"} else parquet.read_table(path)
    first, *fields = column.split(".")
    if first not in table.column_names:
        known = ", ".join(table.column_names)
        raise DataError(f"--subset {column}: {path} of the set {set_name} has no such column; it has {known}.")
    return [_value(value, fields) for value in table.column(first).to_pylist()]


def _value(value: Any, fields: list[str]) -> str:
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
    return "(none)" if value is None else str(value)
