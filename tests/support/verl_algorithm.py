"""verl's `algorithm` group as a job with token-level importance correction has it, for tests of one phase of a step."""

from typing import Any, Final

VERL_ALGORITHM: Final[dict[str, Any]] = {
    "use_kl_in_reward": False,
    "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": None},
    "adv_estimator": "grpo",
    "gamma": 1.0,
    "lam": 1.0,
    "norm_adv_by_std_in_grpo": True,
}
