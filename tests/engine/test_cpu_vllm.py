"""How large vLLM's cache is on processors."""

from types import SimpleNamespace
from typing import Any

import engines
import pytest


@pytest.mark.parametrize(
    ("longest", "sequences", "block_sizes", "expected"),
    [(56, 256, [128], 257), (129, 2, [128], 5), (129, 2, [128, 16], 1 + 2 * (2 + 9))],
    ids=["a block each", "two blocks each", "two groups of layers"],
)
@pytest.mark.parametrize("allowed_blocks", [10_000, 4], ids=["enough memory", "too little memory"])
def test_the_cache_has_the_blocks_that_can_be_in_use_at_once(
    longest: int, sequences: int, block_sizes: list[int], expected: int, allowed_blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    utils = engines.load("vllm.v1.core.kv_cache_utils")
    taken: list[int] = []
    monkeypatch.setattr(utils, "get_kv_cache_config_from_groups", lambda _, __, memory: taken.append(memory))
    monkeypatch.setattr(utils, "_get_kv_cache_bytes_per_block", lambda _: 1000)
    engines.load("dapo_trainer.verl_adapter.cpu_vllm").cap_kv_cache()
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=longest), scheduler_config=SimpleNamespace(max_num_seqs=sequences)
    )
    groups: list[Any] = [SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size)) for size in block_sizes]
    utils.get_kv_cache_config_from_groups(config, groups, allowed_blocks * 1000)
    assert taken == [1000 * min(expected, allowed_blocks)]
