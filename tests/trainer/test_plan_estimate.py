"""`dapo plan`'s estimates against numbers worked out by hand: known models, memory by cause, time by phase."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import job

from dapo_core.jobspec import DAPOJobSpec, load_job
from dapo_trainer.plan.accelerators import ACCELERATORS, GIB
from dapo_trainer.plan.architecture import KNOWN, Architecture, known, of_config, of_folder
from dapo_trainer.plan.duration import Assumptions, Duration
from dapo_trainer.plan.estimate import Estimate, estimate
from dapo_trainer.plan.memory import Engine, generation, trained_parameters, training
from dapo_trainer.plan.warnings import quantity
from dapo_trainer.verl_config import Paths, Placement, compose

EXAMPLES = Path(__file__).parents[2] / "examples"
PATHS = Paths(model="/m", train=("/t.parquet",), validation=("/v.parquet",), checkpoints="/c")
H100, A800 = ACCELERATORS["h100-80gb"], ACCELERATORS["a800-80gb"]
SMALL = Architecture(2, 8, 16, 2, 1, 4, 100)


def estimated(spec: DAPOJobSpec, gpu: str = "h100-80gb", **assumed: Any) -> Estimate:
    model = known(spec.model.source)
    assert model is not None
    return estimate(spec, compose(spec, Placement("cuda"), PATHS), model, ACCELERATORS[gpu], Assumptions(**assumed))


def example(name: str) -> DAPOJobSpec:
    return load_job(EXAMPLES / f"{name}.yaml").spec


@pytest.mark.parametrize(
    ("source", "parameters", "kv_bytes"),
    [
        # Parameters as the safetensors files of the models count them; a token's cache by hand.
        pytest.param("hf://Qwen/Qwen2.5-0.5B", 494_032_768, 2 * 24 * 2 * 64 * 2, id="tied, small heads"),
        pytest.param("hf://Qwen/Qwen2.5-7B", 7_615_616_512, 2 * 28 * 4 * 128 * 2, id="Qwen2.5-7B"),
        pytest.param("hf://Qwen/Qwen2.5-32B", 32_763_876_352, 2 * 64 * 8 * 128 * 2, id="Qwen2.5-32B"),
        pytest.param("hf://Qwen/Qwen2.5-Math-7B-Instruct", 7_615_616_512, 57_344, id="of the same shape"),
        pytest.param("hf://Qwen/Qwen3-8B-Base", 8_190_735_360, 2 * 36 * 8 * 128 * 2, id="Qwen3, norms on heads"),
        pytest.param("hf://meta-llama/Llama-3.1-8B", 8_030_261_248, 2 * 32 * 8 * 128 * 2, id="Llama, no biases"),
    ],
)
def test_known_models(source: str, parameters: int, kv_bytes: int) -> None:
    model = known(source)
    assert model is not None
    assert (model.parameters, model.kv_bytes()) == (parameters, kv_bytes)


def test_key_heads_are_shared_out_and_then_repeated() -> None:
    seven = KNOWN["Qwen2.5-7B"]
    assert [seven.kv_bytes(width) * 4 // seven.kv_bytes() for width in (1, 2, 4, 8)] == [4, 2, 1, 1]


def test_a_config_says_the_same_as_the_table() -> None:
    config = {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    }
    assert of_config(config) == KNOWN["Qwen2.5-7B"]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param('{"model_type": "qwen3_moe", "hidden_size": 1}', id="a mixture of experts"),
        pytest.param('{"model_type": "qwen2"}', id="fields are missing"),
        pytest.param("{", id="torn"),
        pytest.param(None, id="no file"),
    ],
)
def test_what_the_formulas_do_not_describe_is_not_guessed(config: str | None, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert of_folder(tmp_path) is None


@pytest.mark.engine  # transformers imports torch
def test_formulas_count_what_a_real_model_has() -> None:
    from dapo_trainer.demo.warm_start import model, tokenizer

    policy = model(tokenizer())
    shape = of_config(policy.config.to_dict())
    assert shape is not None
    assert shape.parameters == policy.num_parameters()


def engine(**changes: Any) -> Engine:
    base = Engine(
        ranks=8,
        sequence_parallel=1,
        tokens_per_gpu=1000,
        weight_bytes=4,
        compute_bytes=2,
        gradient_checkpointing=True,
        weights_leave=False,
        optimizer_leaves=False,
        utilization=0.5,
        tensor_parallel=1,
        max_sequences=256,
        lora_rank=0,
        colocated=True,
    )
    return replace(base, **changes)


def test_training_memory_of_seven_billion_weights_on_eight_gpus() -> None:
    found = training(KNOWN["Qwen2.5-7B"], engine(), 1000)
    weights = 7_615_616_512 * 4 / 8
    assert (found.weights, found.gradients, found.optimizer) == (weights, weights, 2 * weights)
    layer, ends = 233_057_792, 2 * 152_064 * 3584
    assert found.gathered == (2 * layer + ends) * 2
    # One width kept a layer, and all widths of the one that is computed anew: 4 of hidden, q and its output, k, v, MLP.
    widths = 4 * 3584 + 2 * 3584 + 2 * 512 + 3 * 18_944
    assert found.activations == 1000 * 2 * (28 * 3584 + widths)
    assert found.logits == 1000 * 152_064 * 8
    assert found.total / GIB == pytest.approx(
        (4 * weights + found.gathered + found.activations + found.logits) / GIB + 3
    )


@pytest.mark.parametrize(
    ("changes", "field", "factor"),
    [
        pytest.param({"ranks": 16}, "optimizer", 0.5, id="twice the ranks, half the optimizer"),
        pytest.param({"tokens_per_gpu": 2000}, "logits", 2, id="logits grow with the tokens held"),
        pytest.param({"weight_bytes": 2}, "weights", 0.5, id="weights in bfloat16"),
        pytest.param({"ranks": 1}, "gathered", 0, id="one rank gathers nothing"),
    ],
)
def test_training_memory_follows_its_causes(changes: dict[str, Any], field: str, factor: float) -> None:
    before, after = (training(KNOWN["Qwen2.5-7B"], engine(**c), 1000) for c in ({}, changes))
    assert getattr(after, field) == pytest.approx(factor * getattr(before, field))


def test_a_pass_holds_at_least_the_longest_response() -> None:
    assert training(SMALL, engine(tokens_per_gpu=10), 4000).logits == 4000 * 100 * 8
    assert training(SMALL, engine(tokens_per_gpu=10, sequence_parallel=4), 4000).logits == 1000 * 100 * 8


def test_without_gradient_checkpointing_every_layer_keeps_all() -> None:
    kept = training(SMALL, engine(), 1000).activations - 2 * 1000 * 8 * 2
    assert training(SMALL, engine(gradient_checkpointing=False), 1000).activations == 2 * kept


def test_adapters_are_small() -> None:
    # Rank 4 on q, k, v, o and the MLP's three, both ends of each.
    ends = (8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 16)
    assert trained_parameters(SMALL, 4) == 2 * 4 * ends
    found = training(SMALL, engine(lora_rank=4, ranks=1), 10)
    assert (found.weights, found.gradients) == (SMALL.parameters * 4, 2 * 4 * ends * 4)


def test_generation_memory_of_the_paper() -> None:
    model = KNOWN["Qwen2.5-32B"]
    shared = engine(utilization=0.8, tensor_parallel=4, weights_leave=True, optimizer_leaves=True)
    found = generation(model, shared, training(model, shared, 1000), H100)
    assert found.weights == 32_763_876_352 * 2 / 4
    assert found.kv_cache == pytest.approx(0.8 * 79.6 * GIB - found.weights - 4 * GIB)
    assert found.tokens == int(found.kv_cache / (2 * 64 * 2 * 128 * 2))
    assert found.resident == 3 * GIB, "weights and optimizer have left, CUDA has not"


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        pytest.param({}, 3, id="weights and optimizer stay"),
        pytest.param({"weights_leave": True}, 2, id="optimizer stays"),
        pytest.param({"colocated": False}, None, id="pools of their own"),
    ],
)
def test_what_stays_of_the_trainer_while_vllm_generates(changes: dict[str, Any], stays: int | None) -> None:
    model, chosen = KNOWN["Qwen2.5-7B"], engine(**changes)
    trainer = training(model, chosen, 1000)
    expected = 0 if stays is None else 3 * GIB + stays * trainer.weights
    assert generation(model, chosen, trainer, H100).resident == pytest.approx(expected)


def time_of(spec: DAPOJobSpec, gpu: str = "h100-80gb", **assumed: Any) -> Duration:
    found = estimated(spec, gpu, **assumed).duration
    assert found is not None
    return found


def test_the_published_run_took_about_as_long() -> None:
    """230 steps in about five days on 128 A800, half an hour a step (BytedTsinghua-SIA/DAPO)."""
    assert 20 * 60 < time_of(example("qwen2.5-32b-aime"), "a800-80gb").step < 45 * 60


def test_phases_by_hand() -> None:
    spec = example("qwen2.5-32b-aime")
    found = time_of(spec, decode_rate=1000, response_share=0.25, kept_share=0.5, mfu=0.4, mfu_forward=0.5)
    response = 20_480 / 4
    trained = 512 * 16 * response
    assert (found.tokens_trained, found.tokens_generated) == (trained, 2 * trained)
    assert found.generate == pytest.approx(2 * trained / (1000 * 128))
    # Two operations a weight, and 4 x layers x heads x head size for each token of context.
    forward = trained * (2 * 32_763_876_352 + 4 * 64 * 5120 * response / 2)
    assert found.log_probs == pytest.approx(forward / (128 * 989e12 * 0.5))
    assert found.update == pytest.approx(3 * forward / (128 * 989e12 * 0.4))
    # Alone, a sequence is read out as fast as a quarter of the weights passes through memory.
    alone = 32_763_876_352 * 2 / 4 + response / 2 * 65_536
    assert found.tail == pytest.approx(0.75 * 20_480 * (alone / (3.35e12 * 0.6) + 0.005))
    assert found.sync == pytest.approx(65.53 * 0.25, rel=1e-3)
    assert found.step == pytest.approx(found.generate + found.tail + found.log_probs + found.update + found.sync)


@pytest.mark.parametrize(
    ("assumed", "phase", "factor"),
    [
        pytest.param({"kept_share": 0.25}, "generate", 2, id="half as many groups kept, twice the generation"),
        pytest.param({"mfu": 0.175}, "update", 2, id="half the speed"),
        pytest.param({"bandwidth_share": 0.3, "step_overhead": 0.01}, "tail", 2, id="half the bandwidth"),
        pytest.param({"sync_seconds_per_gb": 0.5}, "sync", 2, id="twice the hand-over"),
    ],
)
def test_every_assumption_counts(assumed: dict[str, float], phase: str, factor: float) -> None:
    spec = example("qwen2.5-7b-math")
    assert getattr(time_of(spec, **assumed), phase) == pytest.approx(factor * getattr(time_of(spec), phase), rel=1e-6)


def test_without_dynamic_sampling_nothing_is_thrown_away() -> None:
    found = time_of(example("ablation/1-naive-grpo"))
    assert found.tokens_generated == found.tokens_trained


def test_separate_pools_work_at_once() -> None:
    topology = {
        "mode": "Separated",
        "trainer": {"gpusPerPod": 8},
        "rollout": {"replicas": 1, "gpusPerPod": 8},
    }
    spec = job(model={"source": "hf://Qwen/Qwen2.5-7B"}, topology=topology).spec
    found = time_of(spec)
    assert found.step == max(found.generate + found.tail, found.log_probs + found.update) + found.sync


BIG = {"resources": {"memory": "1000Gi"}}


@pytest.mark.parametrize(
    ("groups", "model", "gpu", "sentences"),
    [
        pytest.param(
            {"topology": {"trainer": {"gpusPerPod": 8, **BIG}, "rollout": {"tensorParallel": 2}}},
            "Qwen2.5-32B",
            "h100-80gb",
            ["weights, gradients and optimizer: more GPUs", "a GPU of 79.6 GiB would hold"],
            id="too few GPUs for the optimizer",
        ),
        pytest.param(
            {
                "topology": {"trainer": {"replicas": 16, "gpusPerPod": 8, **BIG}, "rollout": {"tensorParallel": 4}},
                "batch": {"maxResponseTokens": 60_000},
            },
            "Qwen2.5-7B",
            "h100-80gb",
            ["activations and logits of 62,048 tokens: lower verlOverrides"],
            id="too long a response for one GPU",
        ),
        pytest.param(
            {"topology": {"trainer": {"replicas": 16, "gpusPerPod": 8, **BIG}}},
            "Qwen2.5-32B",
            "h100-80gb",
            ["does not hold its part of the weights"],
            id="the weights alone are too much for vLLM's share",
        ),
        pytest.param(
            {
                "topology": {"trainer": {"replicas": 16, "gpusPerPod": 8, **BIG}, "rollout": {"tensorParallel": 2}},
                "verlOverrides": {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.45},
            },
            "Qwen2.5-32B",
            "h100-80gb",
            ["KV cache of 10,"],
            id="no room for one response",
        ),
        pytest.param(
            {"topology": {"trainer": {"replicas": 2, "gpusPerPod": 8, **BIG}, "rollout": {"tensorParallel": 8}}},
            "Qwen2.5-7B",
            "h100-80gb",
            ["tensorParallel is 8, which does not divide the model's 4 key heads"],
            id="more GPUs than key heads",
        ),
        pytest.param(
            {"topology": {"trainer": {"gpusPerPod": 8, "resources": {"memory": "64Gi"}}}},
            "Qwen2.5-7B",
            "h200",
            ["A trainer pod needs about 80.0 GiB of main memory (16Gi of it /dev/shm), and asks for 64Gi"],
            id="main memory",
        ),
    ],
)
def test_what_cannot_fit_is_told(groups: dict[str, Any], model: str, gpu: str, sentences: list[str]) -> None:
    warned = estimated(job(model={"source": f"hf://Qwen/{model}"}, **groups).spec, gpu).warnings
    assert len(warned) == len(sentences), warned
    for sentence, told in zip(sentences, warned, strict=True):
        assert sentence in told


@pytest.mark.parametrize(
    "name",
    ["qwen2.5-32b-aime", "qwen2.5-7b-math", "ablation/6-dynamic-sampling", "gpu/1-gpu", "gpu/8-gpus", "gpu/128-gpus"],
)
def test_shipped_recipes_fit(name: str) -> None:
    assert estimated(example(name)).warnings == ()


@pytest.mark.parametrize("name", ["1-gpu", "8-gpus", "128-gpus"])
def test_examples_by_size_have_the_gpus_they_say(name: str) -> None:
    assert example(f"gpu/{name}").topology.layout.gpus == int(name.partition("-")[0])


@pytest.mark.parametrize(
    ("text", "count"),
    [("64Gi", 64 * GIB), ("500M", 5e8), ("1024", 1024), ("1.5Ti", 1.5 * 1024 * GIB)],
    ids=["gibibytes", "megabytes", "bytes", "a fraction"],
)
def test_quantities(text: str, count: float) -> None:
    assert quantity(text) == count
