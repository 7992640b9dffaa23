"""What needs probabilities over all tokens, where `verlOverrides` sets a part of it; the job's rules check the rest."""

from typing import Final

from omegaconf import DictConfig, OmegaConf

from dapo_core.errors import Problem, SpecError

TOP_P: Final = "actor_rollout_ref.rollout.top_p"
# verl's keys and ours, with what the sampling engine's probabilities are used for there.
_USES: Final = {
    "algorithm.rollout_correction.rollout_is": "importanceCorrection",
    "algorithm.rollout_correction.rollout_rs": "rolloutRejection",
    "algorithm.rollout_correction.bypass_mode": "verl's bypass mode",
}


def check_truncated_sampling(config: DictConfig) -> None:
    """`config`: composed. Raises SpecError where probabilities over the tokens of top-p would be taken for those over
    all."""
    top_p = float(OmegaConf.select(config, TOP_P))
    if top_p >= 1:
        return
    used = [name for key, name in _USES.items() if OmegaConf.select(config, key)]
    if config.dapo.dynamic_sampling.surplus == "Carry" and config.trainer.v1.trainer_mode == "dapo_colocated":
        used.append("dynamicSampling.surplus Carry")
    if used:
        field = f"spec.verlOverrides.{TOP_P}"
        raise SpecError(
            [
                Problem(
                    field,
                    f"{field} or spec.batch.topP is {top_p:g}, but {' and '.join(used)} compares vLLM's probabilities "
                    "with the trainer's, and vLLM's are over the remaining tokens only: set it to 1, or do without.",
                )
            ]
        )
