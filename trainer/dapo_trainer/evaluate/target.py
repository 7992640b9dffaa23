"""What is evaluated: a run, one of its checkpoints, or a model folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec.base import has_scheme
from dapo_core.run.home import Home
from dapo_trainer.checkpoint_tool.lookup import RunCheckpoints, find_checkpoints

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
