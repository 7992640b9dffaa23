"""The paper's recipe as published: verl's own function, which compares normalized text. For comparisons."""

from verl.utils.reward_score.math_dapo import compute_score

from dapo_trainer.rewards.verdict import Verdict, failed


def judge(response: str, truth: str) -> Verdict:
    """verl's score, accuracy and prediction; a verdict that failed where its function raises."""
    try:
        found = compute_score(response, truth)
    except Exception as error:
        return failed(f"verl's rule: {type(error).__name__}: {error}")
    return Verdict(float(found["score"]), bool(found["acc"]), str(found["pred"]))
