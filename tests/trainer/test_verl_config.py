"""The job as verl reads it: every example composes, and each field changes its own keys and no others."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import VALIDATION, job
from omegaconf import OmegaConf

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJobSpec, load_job
from dapo_trainer.verl_config import Paths, Placement, compose, overrides
from dapo_trainer.verl_config.compose import _defaults, _exists
from dapo_trainer.verl_config.placement import detect_device
from dapo_trainer.verl_config.rejected_overrides import IGNORED, TOP_P

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))
PATHS = Paths(model="/m", train=("/t.parquet",), validation=("/v.parquet",), checkpoints="/c")
CPU, CUDA = Placement("cpu"), Placement("cuda")
ACTOR, ROLLOUT, REFERENCE = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."
# Groups that take any key: ours, and those handed on to Ray, transformers and vLLM.
OPEN = (
    *("dapo.", "ray_kwargs.", "actor_rollout_ref.model.override_config."),
    *(f"{ROLLOUT}engine_kwargs.", f"{ROLLOUT}checkpoint_engine.engine_kwargs."),
)
# Fields of verl's dataclasses that its YAML files do not name (tests/trainer/test_verl_contract.py finds them there).
UNDECLARED = {
    f"{engine}fsdp_config.mixed_precision.{kind}_dtype"
    for engine in (ACTOR, REFERENCE)
    for kind in ("param", "reduce", "buffer")
} | {f"{ROLLOUT}agent.agent_loop_manager_class", f"{ROLLOUT}enable_sleep_mode"}


def spec(**groups: Any) -> DAPOJobSpec:
    return job(**groups).spec


def value(config: Any, key: str) -> Any:
    found = OmegaConf.select(config, key)
    return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    missing = object()
    return {key: after.get(key) for key in {*before, *after} if before.get(key, missing) != after.get(key, missing)}


@pytest.mark.parametrize("placement", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_composes(path: Path, placement: Placement) -> None:
    given = load_job(path).spec
    config = compose(given, placement, PATHS)
    assert value(config, "data.train_batch_size") == given.batch.prompts
    assert value(config, f"{ROLLOUT}n") == given.batch.responses_per_prompt
    assert value(config, "trainer.device") == placement.device
    OmegaConf.to_container(config, resolve=True, throw_on_missing=False)  # every reference leads somewhere


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("mode", ["Colocated", "Separated"])
@pytest.mark.parametrize("placement", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("loss", [{}, {"loss": "sapo"}, {"loss": "drgrpo"}], ids=["dapo", "sapo", "drgrpo"])
def test_every_key_we_set_is_verls(mode: str, placement: Placement, loss: dict[str, Any]) -> None:
    """A key that verl renamed would be set beside the real one, and nobody would notice."""
    everything = spec(
        model={"lora": {}},
        topology={"mode": mode},
        algorithm={"importanceCorrection": {}, "rolloutRejection": {}, "klCoefficient": 0.1} | loss,
        data={"validation": VALIDATION},
    )
    keys = [key for key in overrides(everything, placement, PATHS) if not key.startswith(OPEN)]
    assert [key for key in keys if key not in UNDECLARED and not _exists(_defaults(), key)] == []


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
            "dapo.dynamic_sampling": {
                "enabled": False,
                "filter_by": "accuracy",
                "max_generation_batches": 10,
                "on_exhausted": "TrainPartial",
                "surplus": "Discard",
            },
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
            "dapo.dynamic_sampling": {
                "enabled": False,
                "filter_by": "accuracy",
                "max_generation_batches": 10,
                "on_exhausted": "TrainPartial",
                "surplus": "Discard",
            },
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


def test_the_paper() -> None:
    config = compose(spec(), CUDA, PATHS)
    paper = {
        f"{ACTOR}clip_ratio_low": 0.2,
        f"{ACTOR}clip_ratio_high": 0.28,
        f"{ACTOR}loss_agg_mode": "token-mean",
        f"{ACTOR}use_kl_loss": False,
        "algorithm.use_kl_in_reward": False,
        "algorithm.adv_estimator": "grpo",
        f"{ACTOR}entropy_coeff": 0,
        f"{ACTOR}optim.lr": 1e-6,
        f"{ACTOR}optim.lr_warmup_steps": 20,
        "data.train_batch_size": 512,
        f"{ROLLOUT}n": 16,
        f"{ACTOR}ppo_mini_batch_size": 32,
        "data.max_response_length": 20480,
        "algorithm.rollout_correction.rollout_is": None,
    }
    assert {key: value(config, key) for key in paper} == paper


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


class TestTopology:
    def test_colocated(self) -> None:
        config = compose(spec(), CPU, PATHS)
        assert value(config, "actor_rollout_ref.hybrid_engine") is True
        assert value(config, "trainer.v1.trainer_mode") == "dapo_colocated"

    @pytest.mark.parametrize(("placement", "backend"), [(CPU, "dapo_tcp"), (CUDA, "nccl")], ids=["cpu", "cuda"])
    def test_separated(self, placement: Placement, backend: str) -> None:
        topology = {"mode": "Separated", "rollout": {"replicas": 3, "gpusPerPod": 4, "tensorParallel": 2}}
        config = compose(spec(topology=topology), placement, PATHS)
        expected = {
            "actor_rollout_ref.hybrid_engine": False,
            "trainer.v1.trainer_mode": "dapo_separated",
            "trainer.v1.separate_async.parameter_sync_step": 16,
            f"{ROLLOUT}nnodes": 3,
            f"{ROLLOUT}n_gpus_per_node": 4,
            f"{ROLLOUT}tensor_model_parallel_size": 2,
            f"{ROLLOUT}checkpoint_engine.backend": backend,
        }
        assert {key: value(config, key) for key in expected} == expected

    def test_pods_without_gpus_hold_one_rank_and_one_engine(self) -> None:
        topology = {
            "mode": "Separated",
            "trainer": {"replicas": 2, "gpusPerPod": 0},
            "rollout": {"replicas": 2, "gpusPerPod": 0},
        }
        config = compose(spec(topology=topology), CPU, PATHS)
        keys = ("trainer.nnodes", "trainer.n_gpus_per_node", f"{ROLLOUT}nnodes", f"{ROLLOUT}n_gpus_per_node")
        assert [value(config, key) for key in keys] == [2, 1, 2, 1]
        assert value(config, "ray_kwargs.ray_init.num_gpus") == 4

    def test_a_running_cluster_is_joined(self) -> None:
        config = compose(spec(), Placement("cuda", "head:6379"), PATHS)
        assert value(config, "ray_kwargs.ray_init.address") == "head:6379"
        assert "ray_kwargs.ray_init.num_gpus" not in overrides(spec(), Placement("cuda", "head:6379"), PATHS)

    def test_resuming(self) -> None:
        paths = Paths("/m", ("/t",), (), "/c", resume_from="/r/global_step_7")
        config = compose(spec(), CPU, paths)
        assert value(config, "trainer.resume_mode") == "resume_path"
        assert value(config, "trainer.resume_from_path") == "/r/global_step_7"
        assert value(compose(spec(), CPU, PATHS), "trainer.resume_mode") == "disable"

    def test_no_validation_set_means_no_validation(self) -> None:
        config = compose(spec(), CPU, PATHS)
        assert (value(config, "trainer.test_freq"), value(config, "trainer.val_before_train")) == (-1, False)


class TestVerlOverrides:
    @pytest.mark.parametrize(
        ("given", "key", "wanted"),
        [
            pytest.param({"trainer.balance_batch": False}, "trainer.balance_batch", False, id="dotted"),
            pytest.param({"trainer": {"balance_batch": False}}, "trainer.balance_batch", False, id="nested"),
            pytest.param({f"{ACTOR}clip_ratio_high": 0.5}, f"{ACTOR}clip_ratio_high", 0.5, id="over the job"),
            pytest.param(
                {f"{ROLLOUT}engine_kwargs.vllm.swap_space": 2},
                f"{ROLLOUT}engine_kwargs.vllm.swap_space",
                2,
                id="into an open mapping",
            ),
            pytest.param({"trainer.project_name": None}, "trainer.project_name", None, id="nothing"),
            pytest.param({"trainer.logger": ["console"]}, "trainer.logger", ["console"], id="a list"),
        ],
    )
    def test_a_known_key_wins(self, given: dict[str, Any], key: str, wanted: Any) -> None:
        assert value(compose(spec(verlOverrides=given), CPU, PATHS), key) == wanted

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            pytest.param(
                {f"{ACTOR}clip_ratio_hi": 0.3},
                f"spec.verlOverrides.{ACTOR}clip_ratio_hi is not a key of verl's configuration: "
                f"did you mean {ACTOR}clip_ratio_high?",
                id="nearest",
            ),
            pytest.param(
                {"trainer": {"total_epoch": 3}},
                "spec.verlOverrides.trainer.total_epoch is not a key of verl's configuration: "
                "did you mean trainer.total_epochs?",
                id="nested",
            ),
            pytest.param(
                {"qqqqqq": 1},
                "spec.verlOverrides.qqqqqq is not a key of verl's configuration: "
                "`dapo plan --full` prints the valid keys.",
                id="nothing near",
            ),
            pytest.param(
                {"dapo.overlong.filter": False},
                "spec.verlOverrides.dapo.overlong.filter is reserved for the platform: set the job's field instead.",
                id="the platform's own",
            ),
            pytest.param(
                {"dapo": {"overlong": {"filter": False}}},
                "spec.verlOverrides.dapo.overlong.filter is reserved for the platform: set the job's field instead.",
                id="the platform's own, nested",
            ),
            pytest.param(
                {"algorithm.filter_groups.metric": "seq_reward"},
                "spec.verlOverrides.algorithm.filter_groups.metric is a key of verl that has no effect here: "
                "set algorithm.dynamicSampling.",
                id="without effect",
            ),
        ],
    )
    def test_others_are_refused(self, given: dict[str, Any], sentence: str) -> None:
        with pytest.raises(SpecError) as error:
            compose(spec(verlOverrides=given), CPU, PATHS)
        assert [problem.message for problem in error.value.problems] == [sentence]

    def test_all_at_once(self) -> None:
        with pytest.raises(SpecError) as error:
            compose(spec(verlOverrides={"trainer.total_epoch": 1, "nothing.like": 2, "dapo.x": 3}), CPU, PATHS)
        assert len(error.value.problems) == 3


@pytest.mark.parametrize("key", IGNORED)
def test_the_keys_without_effect_are_verls(key: str) -> None:
    assert _exists(_defaults(), key)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("algorithm.filter_groups.enable", "set algorithm.dynamicSampling"),
        ("reward.custom_reward_function.path", "responses are scored as the job's reward says"),
        ("actor_rollout_ref.rollout.val_kwargs.n", "set samplesPerPrompt, temperature and topP of data.validation"),
        ("actor_rollout_ref.rollout.top_k", "set batch.topP"),
    ],
)
def test_b15_a_key_without_effect_is_rejected_by_name(key: str, instead: str) -> None:
    with pytest.raises(SpecError) as error:
        compose(spec(verlOverrides={key: 1}), CPU, PATHS)
    [problem] = error.value.problems
    field = f"spec.verlOverrides.{key}"
    assert problem == Problem(field, f"{field} is a key of verl that has no effect here: {instead}.")


def test_neighbors_of_keys_without_effect_have_one() -> None:
    overridden = {"actor_rollout_ref.rollout.top_p": 0.9, "algorithm.use_kl_in_reward": True}
    config = compose(spec(verlOverrides=overridden), CPU, PATHS)
    assert {key: value(config, key) for key in overridden} == overridden


class TestPurity:
    def test_composing_changes_nothing_it_was_given(self) -> None:
        first = OmegaConf.to_yaml(compose(spec(), CPU, PATHS))
        compose(spec(verlOverrides={"trainer.balance_batch": False}), CUDA, PATHS)
        assert OmegaConf.to_yaml(compose(spec(), CPU, PATHS)) == first

    def test_it_imports_no_engine(self) -> None:
        code = (
            "import sys\n"
            "from dapo_core.jobspec import load_job\n"
            "from dapo_trainer.verl_config import Paths, Placement, compose\n"
            f"job = load_job(__import__('pathlib').Path({str(EXAMPLES[0])!r}))\n"
            "compose(job.spec, Placement('cpu'), Paths('/m', ('/t',), (), '/c'))\n"
            "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
        )
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert not {"torch", "verl", "ray", "vllm", "transformers", "transfer_queue"} & set(loaded)


def test_b3_without_periodic_checkpoints_the_last_step_is_saved() -> None:
    """verl saves if `save_freq > 0 and (is_last_step or step % save_freq == 0)`."""
    every = value(compose(spec(schedule={"checkpointEvery": 0, "steps": 10_000_000}), CPU, PATHS), "trainer.save_freq")
    assert every > 10_000_000


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


CORRECTION = "algorithm.rollout_correction."


@pytest.mark.parametrize(
    ("given", "overrides", "named"),
    [
        pytest.param({"algorithm": {"importanceCorrection": {}}}, {TOP_P: 0.9}, "importanceCorrection", id="weights"),
        pytest.param({"algorithm": {"rolloutRejection": {}}}, {TOP_P: 0.9}, "rolloutRejection", id="rejection"),
        pytest.param(
            {"algorithm": {"dynamicSampling": {"surplus": "Carry"}}}, {TOP_P: 0.9}, "surplus Carry", id="carried"
        ),
        pytest.param({"batch": {"topP": 0.7}}, {f"{CORRECTION}rollout_is": "token"}, "importanceCorrection", id="is"),
        pytest.param(
            {"batch": {"topP": 0.7}}, {f"{CORRECTION}bypass_mode": True}, "oldLogProbs Rollout .+", id="bypass"
        ),
        pytest.param({}, {TOP_P: 0.9}, None, id="nothing compares them"),
        pytest.param({"algorithm": {"importanceCorrection": {}}}, {TOP_P: 1.0}, None, id="all tokens"),
    ],
)
def test_an_override_does_not_get_around_top_p_1(
    given: dict[str, Any], overrides: dict[str, Any], named: str | None
) -> None:
    wanted = spec(**given, verlOverrides=overrides)
    if named is None:
        compose(wanted, CPU, PATHS)
        return
    with pytest.raises(SpecError, match=f"{named} compares vLLM's probabilities") as error:
        compose(wanted, CPU, PATHS)
    assert [problem.field for problem in error.value.problems] == [f"spec.verlOverrides.{TOP_P}"]


@pytest.mark.parametrize(("largest", "bucket"), [(0, 64), (2**20, 64), (151936 * 896 * 4, 520)])
def test_b7_the_largest_tensor_fits_a_bucket(largest: int, bucket: int) -> None:
    config = compose(spec(), CPU, replace(PATHS, largest_tensor_bytes=largest))
    assert value(config, f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes") == bucket


@pytest.mark.parametrize("asked", ["cpu", "cuda"])
def test_the_device_may_be_chosen(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("DAPO_DEVICE", asked)
    assert detect_device() == asked


def test_an_unknown_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPO_DEVICE", "tpu")
    with pytest.raises(SpecError, match=r"DAPO_DEVICE is 'tpu': set it to cpu or cuda\."):
        detect_device()
