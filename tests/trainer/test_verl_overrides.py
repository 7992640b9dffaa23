"""verlOverrides: known keys win, and keys without effect or beside the job's rules are rejected by name."""

from typing import Any

import pytest
from verl_keys import ACTOR, CPU, PATHS, ROLLOUT, spec, value

from dapo_core.errors import Problem, SpecError
from dapo_trainer.verl_config import compose
from dapo_trainer.verl_config.compose import IGNORED, TOP_P, _defaults, _exists


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
