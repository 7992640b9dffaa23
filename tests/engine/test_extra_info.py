"""A row's `extra_info` on its way from the data file to the reward function, through verl's dataset and batches."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engines
import numpy as np
import pyarrow
import pytest
from omegaconf import OmegaConf
from pyarrow import parquet

from dapo_core.jobspec import Reward
from dapo_trainer.data.prompt_files import PromptFile, check, write
from dapo_trainer.rewards.scorer import Scorer
from dapo_trainer.verl_adapter import session
from dapo_trainer.verl_config.overrides import reward_settings

FAKES = Path(__file__).parents[1] / "trainer" / "fakes"


def test_s1_extra_info_reaches_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.load("verl.trainer.ppo.v1")
    agent_loop = engines.load("dapo_trainer.verl_adapter.agent_loop")
    rows = [
        {
            "prompt": f"{level}?",
            "reward_model": {"ground_truth": "1"},
            "extra_info": {"level": level, "tests": ["a", "b"]},
        }
        for level in (3, 7)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    checked = check(PromptFile("spec.data.train[0].source", "train", tmp_path / "rows.parquet"), "custom")
    files = [str(write(checked, tmp_path / "written.parquet"))]
    config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(tmp_path / "cache")})
    dataset = engines.load("verl.trainer.ppo.utils").create_rl_dataset(files, config, None, None)
    batch = engines.load("verl.utils.dataset.rl_dataset").collate_fn([dataset[0], dataset[1]])
    batch["uid"] = np.array(["a", "b"], dtype=object)
    started: list[Any] = []
    loop = SimpleNamespace(_spawn=lambda work: None, _run_all=lambda partition, rows: started.extend(rows))
    monkeypatch.setattr(session, "_current", session.Session(None, {}))  # type: ignore[arg-type]
    tensors = engines.load("verl.utils.tensordict_utils").get_tensordict(batch)
    agent_loop.GroupAgentLoopManager.generate_sequences(loop, tensors)

    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    reward = reward_settings(Reward(type="custom", module="reward_functions:by_level"))

    async def judged() -> list[float]:
        scorer = Scorer({"reward": reward, "overlong": {"filter": True, "penalty": None}})
        texts = SimpleNamespace(decode=lambda ids, skip_special_tokens: "x", eos_token_id=0)
        config = SimpleNamespace(response_length=10)
        manager = SimpleNamespace(_tokenizer=texts, _scorer=scorer, _truncated=lambda _: False, _config=config)
        response = SimpleNamespace(token_ids=[1])
        try:
            groups = [await agent_loop.GroupAgentLoopManager._judge(manager, row, [response]) for row in started]
        finally:
            await scorer.close()
        return [one.scored.reward for group in groups for one in group]

    assert asyncio.run(judged()) == [3.0, 7.0]
