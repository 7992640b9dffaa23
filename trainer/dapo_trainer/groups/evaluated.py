"""Validation metrics from scored groups: mean@k, best@k, maj@k, exactly (no resampling: k is the number sampled)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from dapo_trainer.rewards.verdict import Verdict


@dataclass(frozen=True)
class Evaluated:
    """One validation prompt: its set and, for each response, verdict, length in tokens and whether it was cut off.

    `index`: the prompt's row in its set.
    """

    set_name: str
    verdicts: Sequence[Verdict]
    lengths: Sequence[int]
    truncated: Sequence[bool]
    index: int = 0

    @property
    def correct(self) -> int:
        return sum(verdict.correct for verdict in self.verdicts)


def majority_is_right(verdicts: Sequence[Verdict]) -> bool:
    """Whether the most frequent answer is right; responses without an answer do not vote, the first wins a tie."""
    votes = Counter(v.predicted for v in verdicts if v.predicted is not None)
    if not votes:
        return False
    winner = votes.most_common(1)[0][0]
    return any(v.correct for v in verdicts if v.predicted == winner)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else float("nan")


def _standard_error(values: Sequence[float]) -> float:
    """Of the values' mean; not a number for fewer than two of them."""
    if len(values) < 2:
        return float("nan")
    mean = _mean(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def validation_metrics(prompts: Iterable[Evaluated]) -> Mapping[str, float]:
    """Under verl's names: `val-core/{set}/acc/mean@k`, `.../best@k/mean`, `.../maj@k/mean`.

    A set of two prompts or more also has the standard error of its mean@k over prompts (responses to one prompt are
    not independent).
    """
    by_set: dict[str, list[Evaluated]] = defaultdict(list)
    for prompt in prompts:
        by_set[prompt.set_name].append(prompt)
    metrics: dict[str, float] = {}
    for name, members in sorted(by_set.items()):
        k = max(len(m.verdicts) for m in members)
        core, side = f"val-core/{name}/acc", f"val-aux/{name}"
        means = [_mean(v.correct for v in m.verdicts) for m in members]
        metrics[f"{core}/mean@{k}"] = _mean(means)
        if len(means) > 1:
            metrics[f"{side}/acc/mean@{k}/standard_error"] = _standard_error(means)
        metrics[f"{core}/best@{k}/mean"] = _mean(any(v.correct for v in m.verdicts) for m in members)
        metrics[f"{core}/maj@{k}/mean"] = _mean(majority_is_right(m.verdicts) for m in members)
        metrics[f"{side}/response_length/mean"] = _mean(n for m in members for n in m.lengths)
        metrics[f"{side}/response_length/clip_ratio"] = _mean(cut for m in members for cut in m.truncated)
    return metrics
