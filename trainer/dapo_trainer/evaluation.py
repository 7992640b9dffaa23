"""Validation metrics from scored groups: mean@k, best@k, maj@k, exactly (no resampling: k is the number sampled)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dapo_trainer.rewards.verdict import Verdict


@dataclass(frozen=True)
class Evaluated:
    """One validation prompt: its set and, a response, its verdict and length in tokens."""

    set_name: str
    verdicts: Sequence[Verdict]
    lengths: Sequence[int]


def _majority_is_right(verdicts: Sequence[Verdict]) -> bool:
    """Whether the answer given most often is right; responses without an answer do not vote, the first wins a tie."""
    votes = Counter(v.predicted for v in verdicts if v.predicted is not None)
    if not votes:
        return False
    winner = votes.most_common(1)[0][0]
    return any(v.correct for v in verdicts if v.predicted == winner)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else float("nan")


def validation_metrics(prompts: Iterable[Evaluated]) -> Mapping[str, float]:
    """Under verl's names: `val-core/{set}/acc/mean@k`, `.../best@k/mean`, `.../maj@k/mean`."""
    by_set: dict[str, list[Evaluated]] = defaultdict(list)
    for prompt in prompts:
        by_set[prompt.set_name].append(prompt)
    metrics: dict[str, float] = {}
    for name, members in sorted(by_set.items()):
        k = max(len(m.verdicts) for m in members)
        core = f"val-core/{name}/acc"
        metrics[f"{core}/mean@{k}"] = _mean(_mean(v.correct for v in m.verdicts) for m in members)
        metrics[f"{core}/best@{k}/mean"] = _mean(any(v.correct for v in m.verdicts) for m in members)
        metrics[f"{core}/maj@{k}/mean"] = _mean(_majority_is_right(m.verdicts) for m in members)
        metrics[f"val-aux/{name}/response_length/mean"] = _mean(n for m in members for n in m.lengths)
    return metrics
