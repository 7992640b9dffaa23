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
        engine = {"actor": {"strategy": "fsdp2"}}
        resume = {"resume_mode": "disable", "resume_from_path": None}
        self.config = OmegaConf.create({"trainer": resume, "actor_rollout_ref": engine})
        OmegaConf.set_struct(self.config, True)
        self.replay_buffer = SimpleNamespace(recall=lambda folder: story.append(("recall", folder)))

    def init(self) -> None:
        told = SimpleNamespace(remote=lambda _remember, parts: self.story.append(("next", {*parts})))
        self.rank = SimpleNamespace(__ray_call__=told)
        self.actor_rollout_wg = SimpleNamespace(
            workers=[self.rank],
            load_checkpoint=lambda local_path, del_local_after_load: self.story.append(
                ("load", local_path, del_local_after_load)
            ),
        )
        self.story.append("engines start")
        self._load_checkpoint()

    def _load_checkpoint(self) -> None:
        self.story.append(("load", self.config.trainer.resume_mode, self.config.trainer.resume_from_path))


AFTER = [("load", "resume_path", "/r/global_step_7"), ("recall", Path("/r/global_step_7"))]
EARLY = [("next", {"model"}), ("load", "/r/weights/actor", False)]


@pytest.mark.parametrize(
    ("folder", "strategy", "early", "kept", "loaded"),
    [
        pytest.param(None, "fsdp2", False, True, [("load", "disable", None)], id="from the model"),
        pytest.param(
            Path("/r/global_step_7"),
            "fsdp2",
            False,
            True,
            [("next", {"model", "optimizer", "extra"}), *AFTER],
            id="from a checkpoint",
        ),
        pytest.param(
            Path("/r/global_step_7"),
            "fsdp2",
            True,
            True,
            [*EARLY, ("next", {"optimizer", "extra"}), *AFTER],
            id="weights before the rest has arrived",
        ),
        pytest.param(
            Path("/r/global_step_7"),
            "fsdp2",
            True,
            False,
            [*EARLY, ("next", {"model", "optimizer", "extra"}), *AFTER],
            id="weights of a checkpoint that turned out to be corrupt",
        ),
        pytest.param(
            Path("/r/global_step_7"),
            "fsdp",
            True,
            True,
            [("next", {"model", "optimizer", "extra"}), *AFTER],
            id="an engine that loads everything together",
        ),
    ],
)
def test_files_are_waited_for_after_the_engines_have_started(
    folder: Path | None, strategy: str, early: bool, kept: bool, loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = engines.load("dapo_trainer.verl_adapter.trainers")
    from dapo_trainer.verl_adapter import checkpoint_parts, session

    story: list[Any] = []

    def resume(load_weights: Any) -> session.Resumed | None:
        story.append("wait")
        has_weights = early and load_weights(Path("/r/weights"))
        return None if folder is None else session.Resumed(folder, has_weights and kept)

    of = session.Session(None, {}, on_ranks=story.append, resume=resume)  # type: ignore[arg-type]
    monkeypatch.setattr(session, "_current", of)
    monkeypatch.setattr(checkpoint_parts.ray, "get", lambda calls: None)
    trainer = type("Trainer", (trainers._Hooks, VerlTrainer), {})(story)
    trainer.config.actor_rollout_ref.actor.strategy = strategy
    trainer.init()
    trainer.actor_rollout_wg = SimpleNamespace(workers=["what a step puts in their place for a while"])
    assert story == [[trainer.rank], "engines start", "wait", *loaded]
