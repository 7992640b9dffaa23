"""`dapo evaluate` on real vLLM: a checkpoint of two ranks with adapters, put together, sampled from and judged."""

import json
import subprocess
import sys
from pathlib import Path

import engines
import pytest
from patience import patient
from real_run import leftovers
from shards import adapted_checkpoint
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from dapo_core.db import open_reader
from dapo_core.objectstore import FolderStore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def uri(tmp_path: Path, small_model: Path) -> str:
    """The small model as a run's checkpoint of step 7, a part of it in LoRA adapters."""
    engines.load("dapo_trainer.verl_adapter.merge")
    policy = Qwen2ForCausalLM.from_pretrained(small_model / "model")
    text = Qwen2Tokenizer.from_pretrained(small_model / "model")
    store = CheckpointStore(FolderStore(tmp_path / "store"), "small")
    store.commit(LocalCheckpoint(7, adapted_checkpoint(tmp_path / "global_step_7", policy, text, 2), 1, "d"))
    return store.uri(7, 1)


def test_a_checkpoint_is_evaluated(uri: str, tmp_path: Path, small_model: Path) -> None:
    home = tmp_path / "home"
    data = ["--data", f"sums={small_model / 'validation.parquet'}", "--k", "8", "--top-p", "1", "--dtype", "float32"]
    limits = ["--max-prompt-tokens", "16", "--max-response-tokens", "40"]
    command = [
        str(Path(sys.executable).parent / "dapo"),
        "evaluate",
        uri,
        *data,
        *limits,
        "--home",
        str(home),
        "--json",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(500))
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)
    assert (row["run_id"], row["step"], row["set_name"]) == ("small", 7, "sums")
    found = row["results"]
    assert (found["prompts"], found["samples"], found["failures"]) == (64, 8, 0)
    # It was warm-started to be right now and then, and writes answers of some 20 tokens.
    assert 0.02 < found["mean"]["low"] < found["mean"]["value"] < found["mean"]["high"] < 0.6
    assert found["mean"]["value"] < found["pass_at"]["8"]["value"] <= 1
    assert 15 < found["lengths"]["mean"] < 35 and found["lengths"]["longest"] <= 40
    assert len(open_reader(f"sqlite:///{home / 'dapo.db'}").evaluations("small")) == 1
    assert leftovers(home) == []
