"""`dapo plan`'s estimates against numbers worked out by hand: known models, and memory by cause."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import job

from dapo_core.jobspec import DAPOJobSpec, load_job
from dapo_core.quantity import GIB, amount
from dapo_trainer.plan.architecture import KNOWN, Architecture, config_json, known, known_context, of_config, of_folder
from dapo_trainer.plan.estimate import Estimate, estimate
from dapo_trainer.plan.memory import (
    GPUS,
    MemorySettings,
    generation_memory,
    head_memory,
    trained_parameters,
    training_memory,
)
from dapo_trainer.verl_config import Paths, Placement, compose

EXAMPLES = Path(__file__).parents[2] / "examples"
PATHS = Paths(model="/m", train=("/t.parquet",), validation=("/v.parquet",), checkpoints="/c")
H100 = GPUS["h100-80gb"]
SMALL = Architecture(2, 8, 16, 2, 1, 4, 100)


def estimated(spec: DAPOJobSpec, gpu: str = "h100-80gb") -> Estimate:
    model = known(spec.model.source)
    assert model is not None
    return estimate(spec, compose(spec, Placement("cuda"), PATHS), model, GPUS[gpu])


def example(name: str) -> DAPOJobSpec:
    return load_job(EXAMPLES / f"{name}.yaml").spec


@pytest.mark.parametrize(
    ("source", "parameters", "kv_bytes"),
    [
        # Parameters as the safetensors files of the models count them; a token's cache by hand.
        pytest.param("hf://Qwen/Qwen2.5-0.5B", 494_032_768, 2 * 24 * 2 * 64 * 2, id="tied, small heads"),
        pytest.param("hf://Qwen/Qwen2.5-7B", 7_615_616_512, 2 * 28 * 4 * 128 * 2, id="Qwen2.5-7B"),
        pytest.param("hf://Qwen/Qwen2.5-32B", 32_763_876_352, 2 * 64 * 8 * 128 * 2, id="Qwen2.5-32B"),
        pytest.param("hf://Qwen/Qwen2.5-Math-7B-Instruct", 7_615_616_512, 57_344, id="same architecture"),
        pytest.param("hf://Qwen/Qwen3-8B-Base", 8_190_735_360, 2 * 36 * 8 * 128 * 2, id="Qwen3, norms on heads"),
        pytest.param("hf://meta-llama/Llama-3.1-8B", 8_030_261_248, 2 * 32 * 8 * 128 * 2, id="Llama, no biases"),
    ],
)
def test_known_models(source: str, parameters: int, kv_bytes: int) -> None:
    model = known(source)
    assert model is not None
    assert (model.parameters, model.kv_bytes()) == (parameters, kv_bytes)


def test_key_value_heads_are_divided_and_then_duplicated() -> None:
    seven = KNOWN["Qwen2.5-7B"]
    assert [seven.kv_bytes(width) * 4 // seven.kv_bytes() for width in (1, 2, 4, 8)] == [4, 2, 1, 1]


def test_a_config_gives_the_same_as_the_table() -> None:
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


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_an_architecture_that_is_known_has_a_context(name: str) -> None:
    assert (known_context(f"hf://owner/{name}") or 0) >= 32_768


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_an_architecture_becomes_the_config_it_is_read_from(name: str) -> None:
    assert of_config(config_json(KNOWN[name], 4096)) == KNOWN[name]


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        pytest.param("hf://Qwen/Qwen2.5-32B", 131_072, id="base"),
        pytest.param("hf://Qwen/Qwen2.5-7B-Instruct", 32_768, id="instruct"),
        pytest.param("hf://Qwen/Qwen2.5-Math-7B", 4096, id="math"),
        pytest.param("hf://Qwen/Qwen2.5-Math-7B-Instruct", 4096, id="math, instruct"),
        pytest.param("hf://Qwen/Qwen2.5-0.5B-Instruct", 32_768, id="small"),
        pytest.param("hf://Qwen/Qwen3-8B-Base", 32_768, id="Qwen3, base"),
        pytest.param("hf://Qwen/Qwen3-8B", 40_960, id="Qwen3, tuned"),
        pytest.param("hf://meta-llama/Llama-3.1-8B", 131_072, id="Llama"),
        pytest.param("hf://someone/else", None, id="unknown"),
    ],
)
def test_known_contexts(source: str, tokens: int | None) -> None:
    assert known_context(source) == tokens


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


def settings(**changes: Any) -> MemorySettings:
    base = MemorySettings(
        ranks=8,
        sequence_parallel=1,
        tokens_per_gpu=1000,
        logit_chunk=0,
        weight_bytes=4,
        compute_bytes=2,
        gradient_checkpointing=True,
        weights_offloaded=False,
        optimizer_offloaded=False,
        utilization=0.5,
        tensor_parallel=1,
        lora_rank=0,
        colocated=True,
    )
    return replace(base, **changes)


def test_training_memory_of_seven_billion_weights_on_eight_gpus() -> None:
    found = training_memory(KNOWN["Qwen2.5-7B"], settings(), 1000)
    weights = 7_615_616_512 * 4 / 8
    assert (found.weights, found.gradients, found.optimizer) == (weights, weights, 2 * weights)
    layer, ends = 233_057_792, 2 * 152_064 * 3584
    assert found.gathered == (2 * layer + ends) * 2
    # One width kept a layer, and all widths of the one that is recomputed: 4 of hidden, q and its output, k, v, MLP.
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
    before, after = (training_memory(KNOWN["Qwen2.5-7B"], settings(**c), 1000) for c in ({}, changes))
    assert getattr(after, field) == pytest.approx(factor * getattr(before, field))


def test_a_pass_holds_at_least_the_longest_response() -> None:
    assert training_memory(SMALL, settings(tokens_per_gpu=10), 4000).logits == 4000 * 100 * 8
    assert training_memory(SMALL, settings(tokens_per_gpu=10, sequence_parallel=4), 4000).logits == 1000 * 100 * 8


@pytest.mark.parametrize(
    ("held", "at_a_time"), [pytest.param(20_000, 1024, id="a chunk"), pytest.param(100, 100, id="fewer than a chunk")]
)
def test_g11_logits_are_those_of_a_chunk_and_the_heads_gradient(held: int, at_a_time: int) -> None:
    found = training_memory(SMALL, settings(tokens_per_gpu=held, logit_chunk=1024), 50).logits
    assert found == at_a_time * 100 * (4 + 4 + 2) + 100 * 8 * (4 + 2)


def test_g11_the_papers_logits_fit_beside_the_rest() -> None:
    """Of 22,528 tokens they were 25.5 GiB in a pass that is not spread over GPUs."""
    assert estimated(example("qwen2.5-32b-aime")).training.logits < 6.5 * GIB


def test_without_gradient_checkpointing_every_layer_keeps_all() -> None:
    kept = training_memory(SMALL, settings(), 1000).activations - 2 * 1000 * 8 * 2
    assert training_memory(SMALL, settings(gradient_checkpointing=False), 1000).activations == 2 * kept


def test_adapters_are_small() -> None:
    # Rank 4 on q, k, v, o and the MLP's three, both ends of each.
    ends = (8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 16)
    assert trained_parameters(SMALL, 4) == 2 * 4 * ends
    found = training_memory(SMALL, settings(lora_rank=4, ranks=1), 10)
    assert (found.weights, found.gradients) == (SMALL.parameters * 4, 2 * 4 * ends * 4)


def test_generation_memory_of_the_paper() -> None:
    model = KNOWN["Qwen2.5-32B"]
    shared = settings(utilization=0.8, tensor_parallel=4, weights_offloaded=True, optimizer_offloaded=True)
    found = generation_memory(model, shared, training_memory(model, shared, 1000), H100)
    assert found.weights == 32_763_876_352 * 2 / 4
    assert found.kv_cache == pytest.approx(0.8 * 79.6 * GIB - found.weights - 4 * GIB)
    assert found.tokens == int(found.kv_cache / (2 * 64 * 2 * 128 * 2))
    assert found.resident == 3 * GIB, "weights and optimizer are offloaded, CUDA is not"


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        pytest.param({}, 3, id="weights and optimizer stay"),
        pytest.param({"weights_offloaded": True}, 2, id="optimizer stays"),
        pytest.param({"colocated": False}, None, id="separate pods"),
    ],
)
def test_what_stays_of_the_trainer_while_vllm_generates(changes: dict[str, Any], stays: int | None) -> None:
    model, chosen = KNOWN["Qwen2.5-7B"], settings(**changes)
    trainer = training_memory(model, chosen, 1000)
    expected = 0 if stays is None else 3 * GIB + stays * trainer.weights
    assert generation_memory(model, chosen, trainer, H100).resident == pytest.approx(expected)


BIG = {"resources": {"memory": "1000Gi"}}


@pytest.mark.parametrize(
    ("groups", "model", "gpu", "sentences"),
    [
        pytest.param(
            {"topology": {"trainer": {"gpusPerPod": 8, **BIG}, "rollout": {"tensorParallel": 2}}},
            "Qwen2.5-32B",
            "h100-80gb",
            ["weights, gradients and optimizer: add GPUs", "a GPU of 79.6 GiB would hold"],
            id="too few GPUs for the optimizer",
        ),
        pytest.param(
            {
                "topology": {"trainer": {"replicas": 16, "gpusPerPod": 8, **BIG}, "rollout": {"tensorParallel": 4}},
                "batch": {"maxResponseTokens": 250_000},
            },
            "Qwen2.5-7B",
            "h100-80gb",
            ["activations and logits of 252,048 tokens: lower verlOverrides", "The head pod needs up to"],
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
            ["tensorParallel is 8, which does not divide the model's 4 key-value heads"],
            id="more GPUs than key-value heads",
        ),
        pytest.param(
            {"topology": {"trainer": {"gpusPerPod": 8, "resources": {"memory": "64Gi"}}}},
            "Qwen2.5-7B",
            "h200",
            ["A trainer pod needs about 80.0 GiB of main memory (16Gi of it /dev/shm), and requests 64Gi"],
            id="main memory",
        ),
        pytest.param(
            {
                "topology": {
                    "trainer": {"replicas": 16, "gpusPerPod": 8, **BIG},
                    "head": {"resources": {"memory": "16Gi"}},
                }
            },
            "Qwen2.5-7B",
            "h100-80gb",
            ["The head pod needs up to 36.1 GiB of memory (19.8 GiB for the data queue and 4.5 GiB for advantages"],
            id="g4 the head",
        ),
    ],
)
def test_what_cannot_fit_is_a_warning(groups: dict[str, Any], model: str, gpu: str, sentences: list[str]) -> None:
    warned = estimated(job(model={"source": f"hf://Qwen/{model}"}, **groups).spec, gpu).warnings
    assert len(warned) == len(sentences), warned
    for sentence, warning in zip(sentences, warned, strict=True):
        assert sentence in warning


@pytest.mark.parametrize(
    "name",
    [
        "qwen2.5-32b-aime",
        "qwen2.5-7b-math",
        "ablation/6-dynamic-sampling",
        "gpu/1-gpu",
        "gpu/8-gpus",
        "gpu/16-gpus-rdma",
        "gpu/128-gpus",
    ],
)
def test_shipped_recipes_fit(name: str) -> None:
    assert estimated(example(name)).warnings == ()


@pytest.mark.parametrize(
    ("size", "cache", "expected"),
    [
        # 12 bytes for each of 32.76 billion weights, three times, on 16 pods; and the model in bfloat16.
        pytest.param("120Gi", None, "129.7 GiB (68.7 GiB for its part of 3 checkpoints, 61.0 GiB for the model)"),
        pytest.param("130Gi", None, None),
        pytest.param("68Gi", {"claim": "models"}, "68.7 GiB (68.7 GiB for its part of 3 checkpoints)"),
        pytest.param("69Gi", {"claim": "models"}, None),
    ],
    ids=["too small", "enough", "too small with a cache", "enough with a cache"],
)
def test_what_a_trainer_pod_writes(size: str, cache: dict[str, str] | None, expected: str | None) -> None:
    spec = example("qwen2.5-32b-aime").model_dump(by_alias=True, mode="json", exclude_none=True)
    spec["topology"]["trainer"]["scratch"] = {"size": size}
    if cache:
        spec["topology"]["modelCache"] = cache
    warnings = estimated(DAPOJobSpec.model_validate(spec)).warnings
    assert len(warnings) == (expected is not None)
    assert expected is None or f"may write {expected}" in warnings[0]


@pytest.mark.parametrize("name", ["1-gpu", "8-gpus", "128-gpus"])
def test_examples_by_size_have_the_gpus_they_say(name: str) -> None:
    assert example(f"gpu/{name}").topology.layout.gpus == int(name.partition("-")[0])


def test_g4_the_default_head_holds_the_default_batch() -> None:
    spec = job(topology={"trainer": {"replicas": 16, "gpusPerPod": 8}}).spec
    assert head_memory(spec).total < amount(spec.topology.head.resources.memory) < 1.5 * head_memory(spec).total


def test_the_head_of_a_small_job_needs_little() -> None:
    small = example("arithmetic-cluster")
    assert head_memory(small).total < amount(small.topology.head.resources.memory)
