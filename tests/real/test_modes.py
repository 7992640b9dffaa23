"""Both placements of the paper's algorithm and its baseline, on real verl and vLLM."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_run import DapoRun, Starter, kill
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dapo_core.run.metrics import is_documented
from dapo_core.run.recording import RecordedGroup, RecordedResponse

pytestmark = pytest.mark.timeout(900)
STEPS, PROMPTS = 3, 16
CURVES = {
    "actor/entropy", "actor/grad_norm", "actor/lr", "actor/ppo_kl", "actor/clip_fraction_high",
    "actor/clip_fraction_low", "dapo/mean_probability", "dapo/nll/generated", "dapo/accuracy/generated",
    "dapo/accuracy/trained", "dapo/reward/generated", "critic/score/mean", "response_length/mean",
    "response_length/max", "response_length/clip_ratio", "dapo/groups/all_wrong", "dapo/groups/mixed",
    "dapo/groups/all_right",
    "dapo/generation_batches", "training/rollout_probs_diff_mean", "perf/throughput", "perf/time_per_step",
    "timing_s/gen", "timing_s/old_log_prob", "timing_s/update_actor", "timing_s/update_weights",
}  # fmt: skip
VALIDATED = {f"val-core/arithmetic/acc/{figure}" for figure in ("mean@2", "best@2/mean", "maj@2/mean")}
# How far the policy that is trained is from the one that sampled: versions, log-probs on both sides, weights.
OFF_POLICY = {
    "training/off_policy/trajectory_staleness/mean", "training/off_policy/trajectory_staleness_worst/max",
    "training/rollout_probs_diff_max", "rollout_corr/training_log_ppl", "rollout_corr/rollout_log_ppl",
    "rollout_corr/kl", "rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_max",
    "rollout_corr/rollout_rs_masked_fraction",
}  # fmt: skip


def curves(run: DapoRun) -> Mapping[int, Mapping[str, float]]:
    """Every value by step and name."""
    found: dict[int, dict[str, float]] = {}
    for step, name, value in run.query(
        "select step, name, value from curve_points join metric_names using (metric_id) where flag is null"
    ):
        found.setdefault(step, {})[name] = value
    return found


def share(values: Mapping[str, float], *kinds: str) -> float:
    return sum(values[f"dapo/groups/{kind}"] for kind in kinds)


# The row's number is in the column `extra_info` of the training data, and validation rows have one too.
RANKED = """
async def score(responses, truth, *, prompt, extra_info):
    assert extra_info["index"] >= 0
    return [sum(len(other) > len(one) for other in responses) / len(responses) for one in responses]
"""


# What a GPU trains with beyond the packed rows of every device: each response over two ranks, log-probs by chunks of
# tokens.
AS_ON_GPUS = {
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2,
    "actor_rollout_ref.model.use_fused_kernels": True,
}


@pytest.mark.parametrize(
    ("loss", "overrides"),
    [pytest.param("sapo", {}, id="sapo"), pytest.param("drgrpo", AS_ON_GPUS, id="drgrpo, as on GPUs")],
)
def test_grpo_with_kl_on_two_ranks_reports_every_curve(
    dapo: Starter, small_model: Path, tmp_path: Path, loss: str, overrides: dict[str, Any]
) -> None:
    """With a second reward, which a function of a file gives to whole groups, and files that are drawn by weight."""
    (tmp_path / "brevity.py").write_text(RANKED)
    brevity = {"name": "brevity", "type": "custom", "file": f"{tmp_path}/brevity.py:score", "perGroup": True}
    train = str(small_model / "train.parquet")
    grpo: dict[str, Any] = {
        "algorithm": {"preset": "grpo", "klCoefficient": 0.01, "loss": loss},
        "optimizer__warmupSteps": 0,
    }
    run = dapo(
        schedule__steps=STEPS,
        topology__trainer__gpusPerPod=2,
        reward={"additional": [{**brevity, "weight": 0.1}]},
        data__train=[{"source": train, "weight": 3.0}, {"source": train, "weight": 1.0}],
        trackers=["tensorboard"],
        verlOverrides=overrides,
        **grpo,
    )
    assert run.end(400) == 0, run.tail()
    by_step = curves(run)
    last = by_step[STEPS]
    disagreement = [by_step[step]["training/rollout_probs_diff_mean"] for step in range(1, STEPS + 1)]
    assert max(disagreement) < 0.01, f"the trainer's log-probs are not the engine's: {disagreement}"
    assert last["dapo/reward_failures"] == 0 and 0 < last["dapo/rewards/brevity"] < 1
    assert last["dapo/rewards/math"] == pytest.approx(2 * last["dapo/accuracy/generated"] - 1)
    assert [name for name in last if not is_documented(name)] == []
    assert last.keys() >= CURVES | VALIDATED, sorted((CURVES | VALIDATED) - last.keys())
    assert share(last, "all_wrong", "mixed", "all_right", "lost") == pytest.approx(1.0)
    [queue] = run.home.glob("store/*/checkpoints/step-000003-*/transfer_queue/simple_storage/*.pkl")
    rows = pickle.loads(queue.read_bytes())["active_keys"]
    assert len(rows) <= 1, "B15: the batch that was trained on is in the checkpoint"
    _tokens_are_recorded(run, 2)
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    for name, value in last.items():
        assert events.Scalars(name)[-1].value == pytest.approx(value, rel=1e-5), name


def test_b5_adapters_are_trained_and_reach_the_engine(dapo: Starter) -> None:
    """The reference policy is the model without its adapters. After the first step these are large, and the engine
    still samples from the policy that is trained.

    How large depends on what was sampled (0.006 to 0.08 in nine runs); a reference with its adapters would give 0.
    Large groups, since one that is all right or all wrong moves no adapter."""
    run = dapo(
        model__lora={"rank": 4},
        algorithm={"preset": "grpo", "klCoefficient": 0.01, "loss": "gspo"},
        optimizer={"warmupSteps": 0, "learningRate": 0.003},
        batch__responsesPerPrompt=8,
        schedule__steps=2,
        data__validation=[],
    )
    assert run.end(400) == 0, run.tail()
    last = curves(run)[2]
    assert last["actor/kl_loss"] > 0.0005
    assert last["training/rollout_probs_diff_mean"] < 0.00001


@pytest.fixture
def half_out_of_reach(small_model: Path, tmp_path: Path) -> Path:
    """The training data, every other label one that no sum of the prompts has: those groups are wrong throughout."""
    rows = pq.read_table(small_model / "train.parquet")
    labels = rows["reward_model"].to_pylist()
    for label in labels[::2]:
        label["ground_truth"] = "1000"
    path = tmp_path / "half.parquet"
    column = pa.array(labels, rows.schema.field("reward_model").type)
    pq.write_table(rows.set_column(rows.schema.get_field_index("reward_model"), "reward_model", column), path)
    return path


def test_separate_pools_train_on_what_the_cap_leaves(dapo: Starter, half_out_of_reach: Path) -> None:
    """Two ranks, two engines, at most half of the groups worth training on, and as many prompts a step as a batch has:
    the first step gets those of the batch that runs ahead too, later ones train on a part."""
    run = dapo(
        data__train=[{"source": str(half_out_of_reach)}],
        schedule__steps=STEPS,
        topology__mode="Separated",
        topology__trainer__gpusPerPod=2,
        topology__rollout__replicas=2,
        batch__prompts=PROMPTS,
        batch__responsesPerPrompt=8,
        batch__miniBatchResponses=32,
        algorithm__loss="cispo",
        algorithm__dynamicSampling={"maxGenerationBatches": 1},
        algorithm__importanceCorrection={},
        algorithm__rolloutRejection={},
    )
    run.wait_for_step(1, attempt=1)
    kill(run.below("EngineCore")[0])
    assert run.end(400) == 0, run.tail()
    _one_engine_was_lost(run, curves(run))
    by_step = curves(run)
    last = by_step[STEPS]
    assert [name for name in last if not is_documented(name)] == []
    assert last.keys() >= CURVES | VALIDATED | OFF_POLICY, sorted((CURVES | VALIDATED | OFF_POLICY) - last.keys())
    assert 0 <= last["training/off_policy/trajectory_staleness/mean"] <= 2
    assert 0 < last["dapo/accuracy/trained"] < 1

    trained = [by_step[step]["dapo/groups/trained"] for step in range(1, STEPS + 1)]
    assert all(0 < groups <= PROMPTS for groups in trained) and trained[-1] < PROMPTS, trained
    [(told, message), *_] = run.query("select type, message from events where reason = 'SamplingExhausted'")
    assert told == "Warning" and message.endswith("training on these."), message
    _every_prompt_is_accounted_for([by_step[step] for step in range(1, STEPS + 1)])
    _tokens_are_recorded(run, 2)


def _groups(run: DapoRun, step: int) -> list[RecordedGroup]:
    [path] = run.home.glob(f"store/*/samples/step-{step:06}-attempt-1-groups.parquet")
    return [RecordedGroup.of_row(row) for row in pq.read_table(path).to_pylist()]


def _tokens_are_recorded(run: DapoRun, step: int) -> None:
    """Of responses that were trained on, what both policies thought of each token."""
    [path] = run.home.glob(f"store/*/samples/step-{step:06}-attempt-1-tokens.parquet")
    found = [RecordedResponse.of_row(row) for row in pq.read_table(path).to_pylist()]
    kept = {group.uid: group for group in _groups(run, step) if group.tokens_recorded}
    assert {response.uid for response in found} == kept.keys()
    trained = [response for response in found if kept[response.uid].fate == "trained"]
    assert len({response.uid for response in trained}) == 2
    for one in trained:
        lists = (one.pieces, one.rollout_log_probs, one.trainer_log_probs, one.entropies, one.has_loss, one.clipped)
        assert {len(each) for each in lists} == {len(one.token_ids)}, one
        assert "".join(one.pieces) == one.response and one.advantage is not None and one.check
        assert one.rollout_log_probs == pytest.approx(one.trainer_log_probs, abs=0.1)
        assert any(one.entropies) and set(one.clipped) <= {-1, 0, 1}
    for group in kept.values():
        assert group.submitted_at < group.finished_at <= group.decided_at and group.prompt
        assert len(group.advantages) == (len(group.rewards) if group.fate == "trained" else 0)


def _one_engine_was_lost(run: DapoRun, by_step: Mapping[int, Mapping[str, float]]) -> None:
    assert run.query("select attempt, exit_code from attempts") == [(1, 0)], "the run went on without it"
    assert sum(values.get("dapo/engines/lost", 0) for values in by_step.values()) == 1
    assert min(values["dapo/engines/serving"] for step, values in by_step.items() if step) >= 1
    assert run.query("select type from events where reason = 'RolloutLost'") == [("Warning",)]


def _every_prompt_is_accounted_for(steps: list[Mapping[str, float]]) -> None:
    carried = 0.0
    for values in steps:
        generated = values["dapo/groups/generated"]
        filtered = generated * share(values, "all_wrong", "all_right", "lost")
        ends = values["dapo/groups/trained"] + filtered + values["dapo/groups/dropped"] + values["dapo/groups/carried"]
        assert carried + generated == pytest.approx(ends)
        carried = values["dapo/groups/carried"]
