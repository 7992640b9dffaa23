"""Prompts of weighted files as verl draws them: by the seed, and resumed exactly."""

from collections import Counter
from pathlib import Path
from typing import Any

import engines
import pytest
from omegaconf import OmegaConf

from dapo_trainer.data.prompt_files import write
from dapo_trainer.verl_adapter import session

# torch warns of itself when a loader is iterated.
pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")


@pytest.fixture(scope="module", autouse=True)
def _engines() -> None:
    engines.load("dapo_trainer.verl_adapter.weighted_prompts")


def rows(name: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "data_source": "train",
            "prompt": [{"role": "user", "content": f"{name}{index}"}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
            "extra_info": {"index": index, "json": "{}"},
        }
        for index in range(count)
    ]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings = {"train_weights": [3.0, 1.0], "seed": 5}
    monkeypatch.setattr(session, "_current", session.Session(None, settings))  # type: ignore[arg-type]
    files = [str(write(rows(name, count), tmp_path / f"{name}.parquet")) for name, count in (("a", 10), ("b", 20))]
    return OmegaConf.create(
        {
            "train_files": files,
            "val_files": files,
            "shuffle": True,
            "seed": 5,
            "filter_overlong_prompts": False,
            "cache_dir": str(tmp_path / "cache"),
            "custom_cls": {"path": "pkg://dapo_trainer.verl_adapter.weighted_prompts", "name": "WeightedPrompts"},
        }
    )


def dataset(config: Any, files: Any, **more: Any) -> Any:
    return engines.load("verl.trainer.ppo.utils").create_rl_dataset(files, config, None, None, **more)


def loader(config: Any) -> Any:
    """As verl's trainer makes it."""
    rows = dataset(config, config.train_files)
    sampler = engines.load("verl.trainer.ppo.utils").create_rl_sampler(config, rows)
    collate = engines.load("verl.utils.dataset.rl_dataset").collate_fn
    kind = engines.load("torchdata.stateful_dataloader").StatefulDataLoader
    return kind(rows, batch_size=1, num_workers=0, collate_fn=collate, sampler=sampler)


def drawn(source: Any) -> list[str]:
    return [batch["raw_prompt"][0][0]["content"] for batch in source]


def test_prompts_are_drawn_by_weight_and_seed(config: Any) -> None:
    first = drawn(loader(config))
    assert Counter(text[0] for text in first) == {"a": 60, "b": 20}
    assert Counter(first).keys() == {*(f"a{i}" for i in range(10)), *(f"b{i}" for i in range(20))}
    assert first == drawn(loader(config)) and first != sorted(first)


def test_a_resumed_run_draws_the_rest_in_the_same_order(config: Any) -> None:
    whole = loader(config)
    order = drawn(whole) + drawn(whole)
    begun = loader(config)
    iterator = iter(begun)
    taken = [next(iterator)["raw_prompt"][0][0]["content"] for _ in range(33)]
    resumed = loader(config)
    resumed.load_state_dict(begun.state_dict())
    assert taken + drawn(resumed) + drawn(resumed) == order


def test_a_validation_set_and_its_substitute_have_each_row_once(config: Any) -> None:
    assert len(dataset(config, config.val_files, max_samples=1)) == 1
    assert len(dataset(config, config.train_files[1:])) == 20
