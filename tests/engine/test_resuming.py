"""When verl's trainer hears of the checkpoint that it resumes from: as it loads it, minutes after its ranks began."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engines
import pytest
from omegaconf import OmegaConf


class VerlTrainer:
    """The part of verl's that starts the ranks and loads a checkpoint."""

    def __init__(self, story: list[Any]) -> None:
        self.story = story
        self.config = OmegaConf.create({"trainer": {"resume_mode": "disable", "resume_from_path": None}})
        OmegaConf.set_struct(self.config, True)
        self.replay_buffer = SimpleNamespace(recall=lambda folder: story.append(("recall", folder)))

    def init(self) -> None:
        self.actor_rollout_wg = SimpleNamespace(workers=["rank 0"])
        self.story.append("engines start")
        self._load_checkpoint()

    def _load_checkpoint(self) -> None:
        self.story.append(("load", self.config.trainer.resume_mode, self.config.trainer.resume_from_path))


@pytest.mark.parametrize(
    ("folder", "loaded"),
    [
        pytest.param(None, [("load", "disable", None)], id="from the model"),
        pytest.param(
            Path("/r/global_step_7"),
            [("load", "resume_path", "/r/global_step_7"), ("recall", Path("/r/global_step_7"))],
            id="from a checkpoint",
        ),
    ],
)
def test_files_are_waited_for_after_the_engines_have_started(
    folder: Path | None, loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = engines.load("dapo_trainer.verl_adapter.trainers")
    from dapo_trainer.verl_adapter import session

    story: list[Any] = []

    def resume() -> Path | None:
        story.append("wait")
        return folder

    of = session.Session(None, {}, on_ranks=story.append, resume=resume)  # type: ignore[arg-type]
    monkeypatch.setattr(session, "_current", of)
    trainer = type("Trainer", (trainers._Hooks, VerlTrainer), {})(story)
    trainer.init()
    trainer.actor_rollout_wg = SimpleNamespace(workers=["what a step puts in their place for a while"])
    assert story == [["rank 0"], "engines start", "wait", *loaded]
