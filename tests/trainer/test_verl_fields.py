"""Each field of a job changes its own keys of verl and no others; what verl cannot express is computed."""

from dataclasses import replace
from typing import Any

import pytest
from verl_keys import ACTOR, CPU, CUDA, PATHS, REFERENCE, ROLLOUT, spec, value

from dapo_core.errors import SpecError
from dapo_trainer.verl_config import Placement, compose, overrides


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    missing = object()
    return {key: after.get(key) for key in {*before, *after} if before.get(key, missing) != after.get(key, missing)}


@pytest.mark.parametrize("mode", ["Colocated", "Separated"])
@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        pytest.param({}, "all-linear", id="the default, which peft expands as text only"),
        pytest.param({"targetModules": ["q_proj", "v_proj"]}, ["q_proj", "v_proj"], id="named layers"),
    ],
)
def test_b5_adapters_are_merged_for_the_engines(mode: str, lora: dict[str, Any], expected: object) -> None:
    """verl sends none to separate engines, which would sample from the base model for ever."""
    config = compose(spec(model={"lora": lora}, topology={"mode": mode}), CPU, PATHS)
    assert value(config, "actor_rollout_ref.model.target_modules") == expected
    assert value(config, "actor_rollout_ref.model.lora.merge") is True


SAMPLING_OFF = {
    "enabled": False,
    "filter_by": "accuracy",
    "max_generation_batches": 10,
    "on_exhausted": "TrainPartial",
    "surplus": "Discard",
}
TABLE = [
    pytest.param({"clipHigh": 0.2}, {f"{ACTOR}clip_ratio_high": 0.2}, id="clip-higher off"),
    pytest.param({"clipLow": 0.1}, {f"{ACTOR}clip_ratio_low": 0.1}, id="clip low"),
    pytest.param({"dualClip": 3.0}, {f"{ACTOR}clip_ratio_c": 3.0}, id="dual clip"),
    pytest.param(
        {"lossAggregation": "SequenceMean"}, {f"{ACTOR}loss_agg_mode": "seq-mean-token-mean"}, id="token-level loss off"
    ),
    pytest.param(
        {"klCoefficient": 0.001},
        {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": 0.001},
        id="KL on",
    ),
    pytest.param({"entropyCoefficient": 0.01}, {f"{ACTOR}entropy_coeff": 0.01}, id="entropy bonus on"),
    pytest.param(
        {"dynamicSampling": {"enabled": False}},
        {
            "algorithm.filter_groups.enable": False,
            "dapo.dynamic_sampling": SAMPLING_OFF,
        },
        id="dynamic sampling off",
    ),
    pytest.param(
        {"overlong": {"filter": False}},
        {
            "dapo.overlong": {
                "filter": False,
                "penalty": {"expected_tokens": 16384, "cache_tokens": 4096, "factor": 1.0},
            }
        },
        id="overlong filter off",
    ),
    pytest.param(
        {"overlong": {"penalty": {"enabled": False}}},
        {"dapo.overlong": {"filter": True, "penalty": None}},
        id="soft penalty off",
    ),
    pytest.param(
        {"importanceCorrection": {"level": "Token", "cap": 3.0}},
        {
            "algorithm.rollout_correction.rollout_is": "token",
            "algorithm.rollout_correction.rollout_is_threshold": 3.0,
            "algorithm.rollout_correction.bypass_mode": False,
        },
        id="importance weights, token",
    ),
    pytest.param(
        {"importanceCorrection": {"level": "Sequence"}},
        {
            "algorithm.rollout_correction.rollout_is": "sequence",
            "algorithm.rollout_correction.rollout_is_threshold": 2.0,
            "algorithm.rollout_correction.bypass_mode": False,
        },
        id="importance weights, sequence",
    ),
    pytest.param(
        {"rolloutRejection": {}},
        {
            "algorithm.rollout_correction.rollout_rs": "token_k1",
            "algorithm.rollout_correction.rollout_rs_threshold": "0.5_2.0",
            "algorithm.rollout_correction.bypass_mode": False,
        },
        id="rejection of tokens",
    ),
    pytest.param(
        {"rolloutRejection": {"level": "SequenceMean", "measure": "K3", "upper": 0.01}},
        {
            "algorithm.rollout_correction.rollout_rs": "seq_mean_k3",
            "algorithm.rollout_correction.rollout_rs_threshold": "0.01",
            "algorithm.rollout_correction.bypass_mode": False,
        },
        id="rejection of responses by a distance",
    ),
    pytest.param(
        {"preset": "grpo"},
        {
            f"{ACTOR}clip_ratio_high": 0.2,
            f"{ACTOR}loss_agg_mode": "seq-mean-token-mean",
            "algorithm.filter_groups.enable": False,
            "dapo.dynamic_sampling": SAMPLING_OFF,
            "dapo.overlong": {"filter": False, "penalty": None},
        },
        id="the baseline",
    ),
]


@pytest.mark.parametrize(("algorithm", "changed"), TABLE)
def test_each_part_is_switched_alone(algorithm: dict[str, Any], changed: dict[str, Any]) -> None:
    before, after = overrides(spec(), CPU, PATHS), overrides(spec(algorithm=algorithm), CPU, PATHS)
    found = difference(before, after)
    # A KL term needs the model it compares with: that engine's keys come and go with it.
    reference = {key for key in found if key.startswith(REFERENCE)}
    assert {key: new for key, new in found.items() if key not in reference} == changed
    assert bool(reference) == ("klCoefficient" in algorithm)


@pytest.mark.parametrize(("algorithm", "changed"), TABLE)
def test_and_verl_sees_it(algorithm: dict[str, Any], changed: dict[str, Any]) -> None:
    config = compose(spec(algorithm=algorithm), CPU, PATHS)
    for key, wanted in changed.items():
        assert value(config, key) == wanted


LOSSES = [
    pytest.param(
        {"loss": "gspo"},
        {
            f"{ACTOR}policy_loss.loss_mode": "dapo_gspo",
            f"{ACTOR}clip_ratio_low": 3e-4,
            f"{ACTOR}clip_ratio_high": 4e-4,
            f"{ACTOR}clip_ratio_c": 3.0,
            f"{ACTOR}loss_agg_mode": "seq-mean-token-mean",
        },
        id="gspo",
    ),
    pytest.param(
        {"loss": "cispo"},
        {
            f"{ACTOR}policy_loss.loss_mode": "dapo_cispo",
            f"{ACTOR}clip_ratio_low": 1.0,
            f"{ACTOR}clip_ratio_high": 0.2,
            f"{ACTOR}clip_ratio_c": 3.0,
        },
        id="cispo",
    ),
    pytest.param(
        {"loss": "sapo", "tauNegative": 1.2},
        {
            f"{ACTOR}policy_loss.loss_mode": "dapo_sapo",
            f"{ACTOR}tau_neg": 1.2,
            f"{ACTOR}clip_ratio_high": 0.2,
            f"{ACTOR}clip_ratio_c": 3.0,
            f"{ACTOR}loss_agg_mode": "seq-mean-token-mean",
        },
        id="sapo",
    ),
    pytest.param(
        {"loss": "drgrpo"},
        {
            f"{ACTOR}clip_ratio_high": 0.2,
            f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm",
            f"{ACTOR}loss_scale_factor": 20480,
            "algorithm.norm_adv_by_std_in_grpo": False,
        },
        id="drgrpo",
    ),
]


@pytest.mark.parametrize(("algorithm", "wanted"), LOSSES)
def test_a_loss_as_verl_sees_it(algorithm: dict[str, Any], wanted: dict[str, Any]) -> None:
    """What it does not use keeps verl's own value: 3 and 0.2."""
    config = compose(spec(algorithm=algorithm), CPU, PATHS)
    assert {key: value(config, key) for key in wanted} == wanted


@pytest.mark.parametrize(("mode", "calls"), [("Colocated", 20), ("Separated", 20 * 16)], ids=["a step", "an update"])
def test_warm_up_is_counted_in_rollout_steps(mode: str, calls: int) -> None:
    """verl's schedule advances once a step or, when it trains on mini-batches as they come, once an update."""
    config = compose(spec(topology={"mode": mode}), CUDA, PATHS)
    assert value(config, f"{ACTOR}optim.lr_warmup_steps") == calls


@pytest.mark.parametrize(("whose", "bypass"), [(None, False), ("Trainer", False), ("Rollout", True)])
def test_whose_log_probs_the_ratios_are_relative_to(whose: str | None, bypass: bool) -> None:
    config = compose(spec(algorithm={"oldLogProbs": whose}), CPU, PATHS)
    assert value(config, "algorithm.rollout_correction.bypass_mode") == bypass


@pytest.mark.parametrize(("placement", "kernel"), [(CPU, {"fused": True}), (CUDA, None)], ids=["CPUs", "GPUs"])
def test_on_cpus_the_optimizer_is_one_kernel(placement: Placement, kernel: dict[str, bool] | None) -> None:
    assert value(compose(spec(), placement, PATHS), f"{ACTOR}optim.override_optimizer_config") == kernel


@pytest.mark.parametrize(
    ("placement", "response", "tokens"),
    [
        pytest.param(CPU, 1000, 4096, id="cpu"),
        pytest.param(CPU, 10_000, 11_024, id="cpu, a response that is longer"),
        pytest.param(CUDA, 1000, 16_384, id="cuda"),
        pytest.param(CUDA, 20_480, 21_504, id="cuda, a response that is longer"),
    ],
)
def test_b8_micro_batches_are_sized_by_tokens_whatever_divides_the_mini_batch(
    placement: Placement, response: int, tokens: int
) -> None:
    batch = {"prompts": 131, "responsesPerPrompt": 1, "miniBatchResponses": 131, "maxResponseTokens": response}
    job = spec(
        batch=batch,
        data={"maxPromptTokens": 1024},
        algorithm={"dynamicSampling": {"enabled": False}, "overlong": {"penalty": None}, "klCoefficient": 0.1},
    )
    config = compose(job, placement, PATHS)
    log_probs = ("rollout.log_prob_", "ref.log_prob_")
    assert value(config, f"{ACTOR}use_dynamic_bsz") is True
    assert value(config, f"{ACTOR}ppo_max_token_len_per_gpu") == tokens
    assert all(value(config, f"actor_rollout_ref.{one}use_dynamic_bsz") for one in log_probs)
    assert all(value(config, f"actor_rollout_ref.{one}max_token_len_per_gpu") == tokens for one in log_probs)


KERNELS = {
    "attention": "actor_rollout_ref.model.override_config.attn_implementation",
    "packed": "actor_rollout_ref.model.use_remove_padding",
    "chunked": "actor_rollout_ref.model.use_fused_kernels",
    "backend": "actor_rollout_ref.model.fused_kernel_options.impl_backend",
    "compiled": f"{ACTOR}fsdp_config.use_torch_compile",
}


@pytest.mark.parametrize(
    ("placement", "dtype", "expected"),
    [
        pytest.param(CUDA, "bfloat16", ("dapo_varlen", True, True, "torch", False), id="cuda"),
        pytest.param(CUDA, "float32", ("sdpa", True, True, "torch", False), id="cuda, no kernel in float32"),
        pytest.param(CPU, "bfloat16", ("dapo_varlen", True, False, "torch", False), id="cpu"),
        pytest.param(CPU, "float32", ("dapo_varlen", True, False, "torch", False), id="cpu, float32"),
    ],
)
def test_g1_attention_and_log_probs_need_no_package_and_no_compiler(
    placement: Placement, dtype: str, expected: tuple[Any, ...]
) -> None:
    config = compose(spec(model={"dtype": dtype}), placement, PATHS)
    assert tuple(value(config, key) for key in KERNELS.values()) == expected


SPREAD = f"{ACTOR}ulysses_sequence_parallel_size"


@pytest.mark.parametrize(
    ("given", "dtype", "field"),
    [
        pytest.param({SPREAD: 8, KERNELS["attention"]: "sdpa"}, "bfloat16", SPREAD, id="sdpa"),
        pytest.param({SPREAD: 2, KERNELS["attention"]: "eager"}, "bfloat16", SPREAD, id="eager"),
        pytest.param({SPREAD: 2}, "float32", SPREAD, id="float32 has no kernel"),
        pytest.param(
            {(sharded := f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size"): 2, KERNELS["attention"]: "sdpa"},
            "bfloat16",
            sharded,
            id="by the newer key",
        ),
        pytest.param({SPREAD: 8}, "bfloat16", None, id="ours spans ranks"),
        pytest.param({SPREAD: 8, KERNELS["attention"]: "flash_attention_2"}, "bfloat16", None, id="and flash-attn"),
        pytest.param({KERNELS["attention"]: "sdpa"}, "bfloat16", None, id="one rank"),
    ],
)
def test_g3_a_response_is_spread_over_ranks_only_by_attention_that_spans_them(
    given: dict[str, Any], dtype: str, field: str | None
) -> None:
    wanted = spec(model={"dtype": dtype}, verlOverrides=given)
    if field is None:
        compose(wanted, CUDA, PATHS)
        return
    with pytest.raises(SpecError, match="attends only to its own part of a response") as error:
        compose(wanted, CUDA, PATHS)
    assert [problem.field for problem in error.value.problems] == [f"spec.verlOverrides.{field}"]


@pytest.mark.parametrize(("largest", "bucket"), [(0, 64), (2**20, 64), (151936 * 896 * 4, 520)])
def test_b7_the_largest_tensor_fits_a_bucket(largest: int, bucket: int) -> None:
    config = compose(spec(), CPU, replace(PATHS, largest_tensor_bytes=largest))
    assert value(config, f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes") == bucket
